"""Front ends: tables, formulas and models of other libraries become posteriors."""

"""Statistics of draws as plain arrays: moments, convergence, thinned histories."""

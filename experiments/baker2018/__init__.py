"""Experiments of Baker, Fearnhead, Fox and Nemeth (2018): sparse simplices."""

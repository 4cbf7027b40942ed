"""The experiments of Nemeth and Fearnhead (2021)."""

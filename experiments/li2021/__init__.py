"""The experiments of Li, Wang, Zha and Tao (2021)."""

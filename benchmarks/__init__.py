"""Speed, as ratios measured in one run. No test asserts speed: machines differ and are noisy."""

"""Speed, as ratios measured in one run. Never asserted in a test: machines differ and are noisy."""

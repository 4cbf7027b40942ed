"""The experiments of the talk on preferential subsampling."""

"""The experiments of the poster on SGLD with control variates."""

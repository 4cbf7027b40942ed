"""A run on disk: draws, statistics and sampler state, block by block, in a folder that any later process can open.

    run/
      manifest.json             what is complete: every file with its size and sha256; manifest.previous.json is the one before
      setup.json, setup.npz     what was asked for, and what preparation made of it; a second copy in setup-copy.*
      blocks/draws-0000007.npz  the draws of block 7 and their statistics
      blocks/state-0000007.npz  the sampler's state after them
      draws.zarr/               the finished run, Zarr v3 in ArviZ's schema: xarray.open_datatree("run/draws.zarr", engine="zarr")

A file is written under a temporary name, synced and renamed. What the manifest does not name does not exist; a block whose file
is not the one named there ends the run before it. Arrays are NumPy's own .npz, uncompressed and without pickles.
"""

from .files import StoreError
from .folder import Folder
from .reader import load

__all__ = ["Folder", "StoreError", "load"]

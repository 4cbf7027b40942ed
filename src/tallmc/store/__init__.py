"""A run on disk: draws, statistics and sampler state, block by block, in a folder that any later process can open.

    run/
      manifest.json             what is complete: every block with its size and sha256; manifest.previous.json is the one before
      setup.json, setup.npz     what was asked for, and what preparation made of it; a second copy in setup-copy.*
      blocks/state-0000007.npz  the sampler's state after block 7
      draws.zarr/               draws and statistics, in chunks to which each block is added; once the run is finished it is
                                Zarr v3 in ArviZ's schema: xarray.open_datatree("run/draws.zarr", engine="zarr")
      sampled.zarr/             only where a chain failed, which is NaN in draws.zarr: the draws as they were sampled

A file is written under a temporary name, synced and renamed. What the manifest does not name does not exist; a block whose draws
are not those named there ends the run before it. Other arrays are NumPy's own .npz, uncompressed. There are no pickles.
"""

from .files import StoreError
from .folder import Folder
from .reader import load

__all__ = ["Folder", "StoreError", "load"]

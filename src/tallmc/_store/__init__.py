"""A run on disk: draws, statistics and sampler state, written block by block to a folder.

    run/
      manifest.json             the complete blocks, each with size and sha256;
                                manifest.previous.json is the manifest before this one
      setup.json, setup.npz     the user's settings and the prepared method; setup-copy.* is a copy
      blocks/state-0000007.npz  the sampler's state after block 7
      draws.zarr/               draws and statistics, in chunks that grow with each block. After the
                                run has finished, it is Zarr v3 in ArviZ's schema:
                                xarray.open_datatree("run/draws.zarr", engine="zarr")
      sampled.zarr/             only if a chain failed: the draws as sampled. In draws.zarr all
                                draws of that chain are NaN

Every file is written under a temporary name, synced and renamed. Files that the manifest does not
name are ignored. If the draws of a block do not match the manifest, that block and all later ones
are left out. Arrays other than the draws are uncompressed .npz files. There are no pickles.
"""

from .files import Folder, StoreError

__all__ = ["Folder", "StoreError"]

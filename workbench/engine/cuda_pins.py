"""Host memory of the tiers made known to CUDA, so that copies need none of the driver's own."""

import numpy as np
import torch


class CudaPins:
    """Pins host memory that others allocate. Where CUDA refuses, it stays pageable, and correct."""

    def pin(self, buffer: np.ndarray) -> bool:
        """Whether uint8 [bytes] is pinned now."""
        cudart = torch.cuda.cudart()
        return int(cudart.cudaHostRegister(buffer.ctypes.data, buffer.nbytes, 0)) == 0

    def unpin(self, buffer: np.ndarray) -> None:
        """Undo a `pin` that worked."""
        torch.cuda.cudart().cudaHostUnregister(buffer.ctypes.data)

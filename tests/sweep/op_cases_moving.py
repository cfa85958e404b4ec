"""Operations that move numbers and compute nothing: inputs and further arguments by name."""

import numpy as np
from sweep.cases import Floats, Given, Ints

M = Floats((3, 4))
_INDEX = Given(np.array([[0, 2]], "int32"))

MOVING = {
    "append": ((M, M), {}),
    "array_split": ((M,), {"indices_or_sections": 2}),
    "broadcast_to": ((M,), {"shape": (2, 3, 4)}),
    "depth_to_space": ((Floats((1, 2, 2, 4)),), {"block_size": 2}),
    "diag": ((M,), {}),
    "diagflat": ((Floats((3,)),), {}),
    "diagonal": ((M,), {}),
    "diff": ((M,), {}),
    "dsplit": ((Floats((2, 2, 4)),), {"indices_or_sections": 2}),
    "expand_dims": ((M,), {"axis": 0}),
    "flip": ((M,), {}),
    "fliplr": ((M,), {}),
    "flipud": ((M,), {}),
    "fold": ((Floats((1, 4, 4)),), {"output_size": (4, 4), "kernel_size": 2, "stride": 2}),
    "get_item": ((M,), {"key": 1}),
    "hsplit": ((M,), {"indices_or_sections": 2}),
    "moveaxis": ((M,), {"source": 0, "destination": 1}),
    "nonzero": ((M,), {}),
    "pad": ((M,), {"pad_width": ((1, 1), (1, 1))}),
    "ravel": ((M,), {}),
    "rearrange": ((M,), {"pattern": "a b -> b a"}),
    "repeat": ((M,), {"repeats": 2}),
    "reshape": ((M,), {"newshape": (4, 3)}),
    "roll": ((M,), {"shift": 1}),
    "rot90": ((M,), {}),
    "scatter": ((Given(np.array([[1], [3]], "int32")), Floats((2,))), {"shape": (5,)}),
    "scatter_update": ((Floats((5,)), Given(np.array([[1], [3]], "int32")), Floats((2,))), {}),
    "slice": ((M,), {"start_indices": (1, 1), "shape": (2, 2)}),
    "slice_update": ((M, Given(np.array([1, 1], "int32")), Floats((2, 2))), {}),
    "sort": ((M,), {}),
    "space_to_depth": ((Floats((1, 4, 4, 1)),), {"block_size": 2}),
    "split": ((M,), {"indices_or_sections": 3}),
    "squeeze": ((Floats((3, 1)),), {}),
    "swapaxes": ((M,), {"axis1": 0, "axis2": 1}),
    "take": ((M, Ints((2,), 3)), {"axis": 0}),
    "take_along_axis": ((M, _INDEX), {"axis": 1}),
    "tile": ((M,), {"repeats": (2, 1)}),
    "transpose": ((M,), {}),
    "tril": ((M,), {}),
    "triu": ((M,), {}),
    "unfold": ((Floats((1, 1, 4, 4)),), {"kernel_size": 2}),
    "unstack": ((M,), {}),
    "vsplit": ((M,), {"indices_or_sections": 3}),
}

"""The 27 fixed-width ONNX types, by the short names that declarations are written with."""

from tenonnx import dtypes
from tenonnx.structs.physical import SHORT_NAMES, Tensor

SCALARS = {SHORT_NAMES[scalar.name]: Tensor(scalar) for scalar in dtypes.SCALARS}

f32 = SCALARS["f32"]
f64 = SCALARS["f64"]
f16 = SCALARS["f16"]
bf16 = SCALARS["bf16"]
boolean = SCALARS["boolean"]
c64 = SCALARS["c64"]
c128 = SCALARS["c128"]
i2 = SCALARS["i2"]
i4 = SCALARS["i4"]
i8 = SCALARS["i8"]
i16 = SCALARS["i16"]
i32 = SCALARS["i32"]
i64 = SCALARS["i64"]
u2 = SCALARS["u2"]
u4 = SCALARS["u4"]
u8 = SCALARS["u8"]
u16 = SCALARS["u16"]
u32 = SCALARS["u32"]
u64 = SCALARS["u64"]
f4e2m1 = SCALARS["f4e2m1"]
f6e2m3 = SCALARS["f6e2m3"]
f6e3m2 = SCALARS["f6e3m2"]
f8e8m0 = SCALARS["f8e8m0"]
f8e4m3fn = SCALARS["f8e4m3fn"]
f8e4m3fnuz = SCALARS["f8e4m3fnuz"]
f8e5m2 = SCALARS["f8e5m2"]
f8e5m2fnuz = SCALARS["f8e5m2fnuz"]

//! The version of MongoDB whose behaviour and wire protocol are offered.

pub const COMPATIBLE_VERSION: &str = "7.0.14";
pub const COMPATIBLE_VERSION_ARRAY: [i32; 4] = [7, 0, 14, 0];
pub const WIRE_VERSION_MIN: i32 = 0;
pub const WIRE_VERSION_MAX: i32 = 21;

//! What one field of a key holds, and in which order.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldOrder {
    Ascending,
    Descending,
    Hashed,
    /// Numbers of cells of the sphere that the field's shapes lie in (`2dsphere`).
    Sphere,
    /// Cells of the plane that the field's points lie in (`2d`).
    Plane,
}

impl FieldOrder {
    /// Whether the field's values are in the key, and not what was computed of them.
    pub fn is_of_values(self) -> bool {
        matches!(self, FieldOrder::Ascending | FieldOrder::Descending)
    }

    /// Whether it is about shapes.
    pub fn is_geo(self) -> bool {
        matches!(self, FieldOrder::Sphere | FieldOrder::Plane)
    }
}

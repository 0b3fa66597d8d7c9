//! The kinds of indexes: which keys a document has in an index, and which questions those answer.
//!
//! An index's key pattern says of what kind it is ([`of`]). Whoever writes asks the kind for keys
//! ([`IndexKind::keys`]). Whoever plans asks it for layouts ([`IndexKind::layouts`]): an index whose
//! keys are the same fields in all documents has one, an index over many paths one for each of them.
//! Neither has to know which kinds there are.

mod arrays;
pub mod column;
mod first_format;
mod hashed;
mod index_kind;
mod ordered;
mod plane;
mod sphere;
pub(crate) mod text;
mod wildcard;

use std::sync::Arc;

use banyan_document::Number;
use banyan_document::key::KeyPattern;
use banyan_geo::grid::GridError;
use bson::RawDocument;

pub use arrays::ArrayPaths;
pub use index_kind::{IndexKind, KeyLayout, KeyPrefix};
pub use plane::grid_of;
pub use wildcard::PATH_FIELD;

/// The kind of an index with this pattern and these options, among those of its specification.
pub(crate) fn of(
    pattern: &Arc<KeyPattern>,
    sparse: bool,
    spec: &RawDocument,
) -> Result<Arc<dyn IndexKind>, GridError> {
    let wildcard_projection = spec.get_document("wildcardProjection").ok();
    let kind: Arc<dyn IndexKind> =
        if let Some(wildcard) = wildcard::Wildcard::of(pattern, wildcard_projection) {
            Arc::new(wildcard)
        } else if pattern.has_plane_field() {
            Arc::new(plane::Plane::of(pattern, grid_of(spec)?))
        } else if pattern.has_geo_field() {
            Arc::new(sphere::Sphere::of(pattern, spec))
        } else if pattern.has_hashed_field() {
            Arc::new(hashed::Hashed::of(pattern, sparse))
        } else {
            Arc::new(ordered::Ordered::of(pattern, sparse))
        };
    let version = spec.get("v").ok().flatten().and_then(Number::from_raw);
    Ok(match version.and_then(Number::to_i64_exact) {
        Some(1) => Arc::new(first_format::FirstFormat::of(pattern, kind)),
        _ => kind,
    })
}

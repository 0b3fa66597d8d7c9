//! What a Banyan of the built programs answers. Needs no reference.

mod goldens;
mod hunts;

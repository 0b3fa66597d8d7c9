//! Stories across real processes: each starts the built programs on free loopback ports, drives them
//! with real clients and looks at what a user would see.
//!
//! The programs are those beside this test binary (`target/<profile>/mongod`, …); build them first
//! (`cargo build --workspace --bins`), as `scripts/test` does.

mod harness;

mod house;
mod standalone;

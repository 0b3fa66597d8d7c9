//! Stories across real processes: each starts the built programs on free loopback ports, drives them
//! with real clients and looks at what a user would see.

mod house;
mod standalone;

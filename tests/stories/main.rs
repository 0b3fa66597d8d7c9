//! Stories across real processes: each starts the built programs on free loopback ports, drives them
//! with real clients and looks at what a user would see.

mod clients;
mod cluster;
mod durability;
mod house;
mod map_reduce;
mod members;
mod migrations;
mod monitoring;
mod reads;
mod replica_set;
mod standalone;
mod wire;

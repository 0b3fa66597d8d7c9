//! Stories across real processes: each starts the built programs on free loopback ports, drives them
//! with real clients and looks at what a user would see.

mod bulks;
mod changes;
mod clients;
mod cluster;
mod concerns;
mod crowds;
mod definitions;
mod durability;
mod figures;
mod forced;
mod house;
mod idle_cursors;
mod index_builds;
mod index_kinds;
mod interrupts;
mod joining;
mod limits;
mod locks;
mod logs;
mod map_reduce;
mod members;
mod migrations;
mod monitoring;
mod moved_reads;
mod moved_sessions;
mod operating;
mod orphans;
mod parts;
mod plan_cache;
mod power;
mod reads;
mod replica_set;
mod routing;
mod standalone;
mod wire;

//! Reads arguments and wires the rooms.
fn main() {}

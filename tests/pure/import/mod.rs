//! `tidegate import ratelimit`: the rules that it makes decide what the tree decided, whatever the tree; what it writes and
//! what it says.

mod command;
mod property;
mod tree;

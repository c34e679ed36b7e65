//! The rules reader: what good files mean, what bad ones are told, directories, and files with a slip in them.

mod bad;
mod files;
mod good;
mod mutated;
mod warnings;

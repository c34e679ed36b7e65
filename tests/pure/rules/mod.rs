//! The rules reader: what good files mean, what bad ones are told, directories, and files with a slip in them.

use crate::problems;
mod bad;
mod bad_files;
mod bad_quotas;
mod bad_sheds;
mod concurrency;
mod differences;
mod files;
mod fleet;
mod good;
mod library;
mod lists;
mod quotas;
mod reference;
mod sheds;
mod tables;
mod warnings;

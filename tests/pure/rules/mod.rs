//! The rules reader: the meaning of good files, directories, bounds. `diagnostics/` has the errors and
//! warnings, `fuzz` files with a typo in them.

use crate::problems;
mod bounds;
mod concurrency;
mod differences;
mod files;
mod fleet;
mod keys;
mod library;
mod links;
mod lists;
mod quotas;
mod reference;
mod sheds;
mod tables;

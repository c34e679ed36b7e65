//! How far a cell has come on its way from one name to another.

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum Carry {
    /// It is to be read under this name.
    Lift([u8; 16]),
    /// This was read, and is to be written under the present one.
    Plant(Vec<u8>),
}

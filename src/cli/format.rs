//! The output formats of commands.

/// For whom it is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object, for programs
    Json,
}

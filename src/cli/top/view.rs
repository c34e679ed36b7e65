//! The choices of the user of `tidegate top`: order, filter, pause, help. Keys change them.

use clap::ValueEnum;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What the screen shows, in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TopView {
    pub(super) sort: SortColumn,
    /// Rules, callers and pools whose names contain it are shown, in any case of letters.
    pub(super) filter: String,
    pub(super) is_paused: bool,
    pub(super) open: OpenPanel,
}

/// The order of the rules; numbers descend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(super) enum SortColumn {
    /// All requests
    #[default]
    All,
    Passed,
    Refused,
    #[strum(serialize = "would refuse")]
    WouldRefuse,
    /// The name
    Rule,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OpenPanel {
    #[default]
    Tables,
    Filter,
    Help,
}

impl TopView {
    /// Applies a key. Returns whether it ends the command.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return key.code == KeyCode::Char('c');
        }
        match (self.open, key.code) {
            (OpenPanel::Filter, KeyCode::Char(letter)) => self.filter.push(letter),
            (OpenPanel::Filter, KeyCode::Backspace) => drop(self.filter.pop()),
            (OpenPanel::Filter, KeyCode::Enter) => self.open = OpenPanel::Tables,
            (OpenPanel::Filter, KeyCode::Esc) => {
                self.filter.clear();
                self.open = OpenPanel::Tables;
            }
            (OpenPanel::Filter, _) => {}
            (OpenPanel::Help, _) => self.open = OpenPanel::Tables,
            (OpenPanel::Tables, KeyCode::Esc) if !self.filter.is_empty() => self.filter.clear(),
            (OpenPanel::Tables, KeyCode::Char('q') | KeyCode::Esc) => return true,
            (OpenPanel::Tables, KeyCode::Char('s')) => self.sort = self.sort.next(),
            (OpenPanel::Tables, KeyCode::Char('/')) => self.open = OpenPanel::Filter,
            (OpenPanel::Tables, KeyCode::Char('p' | ' ')) => self.is_paused = !self.is_paused,
            (OpenPanel::Tables, KeyCode::Char('?' | 'h')) => self.open = OpenPanel::Help,
            (OpenPanel::Tables, _) => {}
        }
        false
    }

    pub(super) fn accepts(&self, names: &[&str]) -> bool {
        let filter = self.filter.to_lowercase();
        names.iter().any(|name| name.to_lowercase().contains(&filter))
    }
}

impl SortColumn {
    fn next(self) -> SortColumn {
        SortColumn::value_variants().get(self as usize + 1).copied().unwrap_or_default()
    }

    pub(super) fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the column of the table of rules; all requests have none.
    pub(super) fn number(self) -> Option<usize> {
        match self {
            SortColumn::All => None,
            SortColumn::Rule => Some(0),
            outcome => Some(outcome as usize),
        }
    }
}

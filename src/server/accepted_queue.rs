//! Connections that were accepted and are yet to be given to a decision thread, dealt by user in rotation: a user that
//! connects again and again does not keep others outside.

use std::collections::VecDeque;

/// Accepted connections by user. It holds no more than may be connected: each has its permit.
#[derive(Debug)]
pub(super) struct Entrance<T> {
    /// The user in front is next. No list is empty.
    users: VecDeque<(u32, VecDeque<T>)>,
}

impl<T> Entrance<T> {
    pub(super) fn new() -> Entrance<T> {
        Entrance { users: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    pub(super) fn push(&mut self, user: u32, arrived: T) {
        match self.users.iter_mut().find(|(known, _)| *known == user) {
            Some((_, waiting)) => waiting.push_back(arrived),
            None => self.users.push_back((user, VecDeque::from([arrived]))),
        }
    }

    /// The next to be let in.
    pub(super) fn pop(&mut self) -> Option<T> {
        let (user, mut waiting) = self.users.pop_front()?;
        let next = waiting.pop_front();
        if !waiting.is_empty() {
            self.users.push_back((user, waiting));
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::Entrance;

    #[test]
    fn deals_by_user_in_rotation() {
        let mut entrance = Entrance::new();
        for arrived in ["a1", "a2", "a3", "b1", "c1", "c2"] {
            entrance.push(u32::from(arrived.as_bytes()[0]), arrived);
        }
        let order: Vec<_> = std::iter::from_fn(|| entrance.pop()).collect();
        assert_eq!(order, ["a1", "b1", "c1", "a2", "c2", "a3"]);
        assert!(entrance.is_empty());
    }
}

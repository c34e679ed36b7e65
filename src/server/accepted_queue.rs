//! Accepted connections that wait for a decision thread, taken by user in rotation: a flood of connections of one user
//! does not delay other users.

use std::collections::VecDeque;

/// Accepted connections by user, bounded by the connection limits as each has a permit.
#[derive(Debug)]
pub(super) struct AcceptedQueue<T> {
    /// The user in front is next. No list is empty.
    users: VecDeque<(u32, VecDeque<T>)>,
}

impl<T> AcceptedQueue<T> {
    pub(super) fn new() -> AcceptedQueue<T> {
        AcceptedQueue { users: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    pub(super) fn push(&mut self, user: u32, connection: T) {
        match self.users.iter_mut().find(|(known, _)| *known == user) {
            Some((_, waiting)) => waiting.push_back(connection),
            None => self.users.push_back((user, VecDeque::from([connection]))),
        }
    }

    /// Takes the next connection.
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
    use super::AcceptedQueue;

    #[test]
    fn pops_by_user_in_rotation() {
        let mut queue = AcceptedQueue::new();
        for arrived in ["a1", "a2", "a3", "b1", "c1", "c2"] {
            queue.push(u32::from(arrived.as_bytes()[0]), arrived);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["a1", "b1", "c1", "a2", "c2", "a3"]);
        assert!(queue.is_empty());
    }
}

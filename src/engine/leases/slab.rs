//! A slab in fixed-size pieces: growing moves no values, so no insertion takes long.

#[derive(Debug)]
pub(super) struct Slab<T> {
    pieces: Vec<Vec<Option<T>>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Slab<T> {
        Slab { pieces: Vec::new(), free: Vec::new(), len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Adds a value and returns its index. `None`: all indexes are in use.
    pub(super) fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            *self.place(number)? = Some(value);
            self.len += 1;
            return Some(number);
        }
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        let before = (self.pieces.len() - 1) * PIECE;
        let piece = self.pieces.last_mut()?;
        let number = u32::try_from(before + piece.len()).ok().filter(|number| *number != u32::MAX)?;
        piece.push(Some(value));
        self.len += 1;
        Some(number)
    }

    /// Returns whether this index ever held a value.
    pub(super) fn was_allocated(&self, number: u32) -> bool {
        let number = number as usize;
        self.pieces.get(number / PIECE).is_some_and(|piece| number % PIECE < piece.len())
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let number = number as usize;
        self.pieces.get(number / PIECE)?.get(number % PIECE)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.place(number)?.as_mut()
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let removed = self.place(number)?.take()?;
        self.free.push(number);
        self.len -= 1;
        Some(removed)
    }

    /// Returns the first value from index `number` on, and its index.
    pub(super) fn next_from(&self, number: u32) -> Option<(u32, &T)> {
        let (mut piece, mut first) = (number as usize / PIECE, number as usize % PIECE);
        loop {
            let values = self.pieces.get(piece)?;
            let mut values = values.iter().enumerate().skip(first);
            if let Some((at, value)) = values.find_map(|(at, value)| Some((at, value.as_ref()?))) {
                return Some((u32::try_from(piece * PIECE + at).ok()?, value));
            }
            (piece, first) = (piece + 1, 0);
        }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.pieces.iter_mut().flatten().flatten()
    }

    fn place(&mut self, number: u32) -> Option<&mut Option<T>> {
        let number = number as usize;
        self.pieces.get_mut(number / PIECE)?.get_mut(number % PIECE)
    }
}

/// Values in a piece: about 70 KiB of leases.
const PIECE: usize = 1_024;

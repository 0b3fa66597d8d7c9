//! A binary heap of numbers that stand for what is merged: the least on top, as the caller says.

/// Puts what stands at a place of the heap as far down as it has to go.
pub(crate) fn sift_down(
    heap: &mut [usize],
    mut at: usize,
    precedes: impl Fn(usize, usize) -> bool,
) {
    let is_above = |heap: &[usize], a: usize, b: usize| match (heap.get(a), heap.get(b)) {
        (Some(a), Some(b)) => precedes(*a, *b),
        _ => false,
    };
    loop {
        let (left, right) = (2 * at + 1, 2 * at + 2);
        let least = match is_above(heap, right, left) {
            true => right,
            false => left,
        };
        if !is_above(heap, least, at) {
            return;
        }
        heap.swap(at, least);
        at = least;
    }
}

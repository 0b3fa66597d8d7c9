//! What a causal session has seen or written it sees again, on whichever member it reads: its own
//! writes, what it has read, and what those who wrote that had seen before.

use std::collections::{BTreeMap, HashMap};

use super::{Verdict, at};
use crate::history::{Causal, Operation};

#[derive(Clone, Copy, Debug)]
enum Source {
    Wrote,
    Read,
    /// The writer of something that it read.
    Heard,
}

impl Source {
    fn promise(self) -> &'static str {
        match self {
            Source::Wrote => "read your writes",
            Source::Read => "monotonic reads",
            Source::Heard => "writes follow reads",
        }
    }
}

/// A client is a session, and does one thing after the other.
pub fn check(history: &[Operation<Causal>]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut sessions = HashMap::<u32, BTreeMap<u32, (i64, Source)>>::new();
    for operation in history.iter().filter(|operation| operation.is_ok()) {
        let floors = sessions.entry(operation.client).or_default();
        match &operation.action {
            Causal::Write { key, version } => raise(floors, *key, *version, Source::Wrote),
            Causal::Read { key, version, saw } => {
                if let Some((floor, source)) = floors.get(key)
                    && version < floor
                {
                    let promise = source.promise();
                    verdict.problem(format!("{promise}: {floor} was known: {}", at(operation)));
                }
                raise(floors, *key, *version, Source::Read);
                for (key, version) in saw {
                    raise(floors, *key, *version, Source::Heard);
                }
            }
        }
    }
    verdict
}

fn raise(floors: &mut BTreeMap<u32, (i64, Source)>, key: u32, version: i64, source: Source) {
    let floor = floors.entry(key).or_insert((0, source));
    if floor.0 < version {
        *floor = (version, source);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{op, unknown};
    use super::*;

    fn read(key: u32, version: i64, saw: &[(u32, i64)]) -> Causal {
        let saw = saw.iter().copied().collect();
        Causal::Read { key, version, saw }
    }

    fn write(key: u32, version: i64) -> Causal {
        Causal::Write { key, version }
    }

    fn problems(history: &[Operation<Causal>]) -> String {
        check(history).problems.join("\n")
    }

    #[test]
    fn a_good_history_holds() {
        let good = [
            op(1, (0, 1), write(1, 5)),
            op(2, (0, 1), read(1, 0, &[])),
            unknown(1, (2, 3), write(1, 6)),
            op(1, (4, 5), read(1, 5, &[])),
            op(2, (4, 5), read(2, 3, &[(1, 5)])),
            op(2, (6, 7), read(1, 6, &[])),
        ];
        assert_eq!(problems(&good), "");
    }

    #[test]
    fn planted_anomalies_are_found() {
        let own = [op(1, (0, 1), write(1, 5)), op(1, (2, 3), read(1, 4, &[]))];
        assert!(problems(&own).contains("read your writes"));
        let back = [
            op(1, (0, 1), read(1, 5, &[])),
            op(1, (2, 3), read(1, 4, &[])),
        ];
        assert!(problems(&back).contains("monotonic reads"));
        let heard = [
            op(1, (0, 1), read(1, 5, &[(2, 7)])),
            op(1, (2, 3), read(2, 6, &[])),
        ];
        assert!(problems(&heard).contains("writes follow reads"));
        let gone = [op(1, (0, 1), write(1, 5)), op(1, (2, 3), read(1, -1, &[]))];
        assert!(problems(&gone).contains("read your writes"));
    }
}

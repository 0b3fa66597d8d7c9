//! What is known of the runs of queries.

use std::time::Duration;

use banyan_document::decimal::Decimal;
use bson::{DateTime, RawDocumentBuf, cstr, rawdoc};

/// What one batch took: that of the command, or of a `getMore` behind it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Batch {
    pub took: Duration,
    pub returned: u64,
    /// What it took to find the documents; `None`: others have found them, as a router's shards do.
    pub work: Option<Work>,
}

/// What it took to find documents.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// Without what it has waited.
    pub time: Duration,
    pub keys_examined: u64,
    pub documents_examined: u64,
    pub sorted: bool,
    pub used_disk: bool,
    pub from_multi_planner: bool,
    pub from_plan_cache: bool,
}

impl Work {
    fn add(&mut self, other: &Work) {
        self.time += other.time;
        self.keys_examined += other.keys_examined;
        self.documents_examined += other.documents_examined;
        self.sorted |= other.sorted;
        self.used_disk |= other.used_disk;
        self.from_multi_planner |= other.from_multi_planner;
        self.from_plan_cache |= other.from_plan_cache;
    }
}

/// All batches of one run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Execution {
    all: Batch,
    /// `None`: none was read yet.
    first_took: Option<Duration>,
}

impl Execution {
    pub fn add(&mut self, batch: &Batch) {
        self.first_took.get_or_insert(batch.took);
        let all = &mut self.all;
        all.took += batch.took;
        all.returned += batch.returned;
        if let Some(work) = &batch.work {
            all.work.get_or_insert_default().add(work);
        }
    }

    pub fn has_run(&self) -> bool {
        self.first_took.is_some()
    }
}

/// A figure of many runs.
#[derive(Debug, Clone, Copy)]
struct Aggregated {
    sum: u64,
    max: u64,
    min: u64,
    sum_of_squares: u128,
}

impl Default for Aggregated {
    fn default() -> Aggregated {
        Aggregated {
            sum: 0,
            max: 0,
            min: u64::MAX,
            sum_of_squares: 0,
        }
    }
}

impl Aggregated {
    fn add(&mut self, figure: u64) {
        self.sum = self.sum.saturating_add(figure);
        self.max = self.max.max(figure);
        self.min = self.min.min(figure);
        let square = u128::from(figure).saturating_mul(u128::from(figure));
        self.sum_of_squares = self.sum_of_squares.saturating_add(square);
    }

    fn show(&self) -> RawDocumentBuf {
        let squares = Decimal::parse(&self.sum_of_squares.to_string());
        let squares = squares.unwrap_or_else(|| Decimal::from_f64(self.sum_of_squares as f64));
        rawdoc! {
            "sum": shown(self.sum),
            "max": shown(self.max),
            "min": shown(self.min),
            "sumOfSquares": squares.to_bson(),
        }
    }
}

/// How many runs did something.
#[derive(Debug, Clone, Copy, Default)]
struct Flag {
    yes: u64,
    no: u64,
}

impl Flag {
    fn add(&mut self, did: bool) {
        match did {
            true => self.yes += 1,
            false => self.no += 1,
        }
    }

    fn show(&self) -> RawDocumentBuf {
        rawdoc! { "true": shown(self.yes), "false": shown(self.no) }
    }
}

fn shown(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// All runs of the queries of one key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metrics {
    last_micros: u64,
    runs: u64,
    total_micros: Aggregated,
    first_micros: Aggregated,
    returned: Aggregated,
    work: Option<WorkMetrics>,
    first_seen: DateTime,
    last_seen: DateTime,
}

impl Metrics {
    pub fn new(now: DateTime) -> Metrics {
        Metrics {
            last_micros: 0,
            runs: 0,
            total_micros: Aggregated::default(),
            first_micros: Aggregated::default(),
            returned: Aggregated::default(),
            work: None,
            first_seen: now,
            last_seen: now,
        }
    }

    pub fn add(&mut self, execution: &Execution, now: DateTime) {
        let all = &execution.all;
        self.last_micros = micros(all.took);
        self.runs += 1;
        self.total_micros.add(self.last_micros);
        let first = execution.first_took.map_or(self.last_micros, micros);
        self.first_micros.add(first);
        self.returned.add(all.returned);
        if let Some(work) = &all.work {
            self.work.get_or_insert_default().add(work);
        }
        self.last_seen = now;
    }

    pub fn show(&self) -> RawDocumentBuf {
        let mut shown = rawdoc! {
            "lastExecutionMicros": shown(self.last_micros),
            "execCount": shown(self.runs),
            "totalExecMicros": self.total_micros.show(),
            "firstResponseExecMicros": self.first_micros.show(),
            "docsReturned": self.returned.show(),
        };
        if let Some(work) = &self.work {
            work.show(&mut shown);
        }
        shown.append(cstr!("firstSeenTimestamp"), self.first_seen);
        shown.append(cstr!("latestSeenTimestamp"), self.last_seen);
        shown
    }
}

/// What all runs took to find their documents.
#[derive(Debug, Clone, Copy, Default)]
struct WorkMetrics {
    milliseconds: Aggregated,
    keys_examined: Aggregated,
    documents_examined: Aggregated,
    sorted: Flag,
    used_disk: Flag,
    from_multi_planner: Flag,
    from_plan_cache: Flag,
}

impl WorkMetrics {
    fn add(&mut self, work: &Work) {
        self.milliseconds.add(micros(work.time) / 1000);
        self.keys_examined.add(work.keys_examined);
        self.documents_examined.add(work.documents_examined);
        self.sorted.add(work.sorted);
        self.used_disk.add(work.used_disk);
        self.from_multi_planner.add(work.from_multi_planner);
        self.from_plan_cache.add(work.from_plan_cache);
    }

    fn show(&self, out: &mut RawDocumentBuf) {
        out.append(cstr!("keysExamined"), self.keys_examined.show());
        out.append(cstr!("docsExamined"), self.documents_examined.show());
        out.append(cstr!("workingTimeMillis"), self.milliseconds.show());
        out.append(cstr!("hasSortStage"), self.sorted.show());
        out.append(cstr!("usedDisk"), self.used_disk.show());
        out.append(cstr!("fromMultiPlanner"), self.from_multi_planner.show());
        out.append(cstr!("fromPlanCache"), self.from_plan_cache.show());
    }
}

//! Stages over an order: $setWindowFields, $densify and $fill.

use bson::{Bson, Document, doc};

use super::Generator;
use super::pipeline::SMALL_STEPS;

/// Functions over a window that take one expression, and the letter of that.
const UNARY: &[(&str, char)] = &[
    ("$sum", 'n'),
    ("$avg", 'n'),
    ("$min", 'v'),
    ("$max", 'v'),
    ("$push", 'v'),
    ("$addToSet", 'v'),
    ("$first", 'v'),
    ("$last", 'v'),
    ("$stdDevPop", 'n'),
    ("$stdDevSamp", 'n'),
    ("$count", 'v'),
    ("$locf", 'v'),
    ("$linearFill", 'n'),
    ("$mergeObjects", 'o'),
];
const N_VALUES: &[&str] = &["$firstN", "$lastN", "$minN", "$maxN"];
const RANKED: &[&str] = &["$top", "$bottom", "$topN", "$bottomN"];
const PLACES: &[&str] = &["$rank", "$denseRank", "$documentNumber"];
const PAIRS: &[&str] = &["$covariancePop", "$covarianceSamp"];
const CALCULUS: &[&str] = &["$derivative", "$integral"];
const LENGTHS: &[&str] = &[
    "week",
    "day",
    "hour",
    "minute",
    "second",
    "millisecond",
    "month",
];

impl Generator {
    /// A number `n` and a date `t` of each document, both in the order of the ids.
    pub fn along_the_ids(&mut self) -> Document {
        let step = self.small_step();
        let unit = *self.random.pick(LENGTHS);
        let amount = doc! { "$multiply": ["$_id", self.random.between(1, 3) as i32] };
        let start = self.date();
        let date = doc! { "$dateAdd": { "startDate": start, "unit": unit, "amount": amount } };
        doc! { "$addFields": { "n": { "$multiply": ["$_id", step] }, "t": date } }
    }

    fn small_step(&mut self) -> Bson {
        let text = *self.random.pick(SMALL_STEPS);
        crate::notation::parse(text).expect("the pool holds numbers")
    }

    pub fn set_window_fields(&mut self) -> Document {
        let mut stage = Document::new();
        if self.random.percent(50) {
            stage.insert("partitionBy", self.argument('v', 1));
        }
        let sorts = [
            (40, doc! { "_id": 1 }),
            (12, doc! { "_id": -1 }),
            (12, doc! { "n": 1 }),
            (12, doc! { "t": 1 }),
            (4, doc! { "t": -1 }),
            (5, doc! { "a": 1, "_id": 1 }),
            (3, doc! { "a": 1 }),
            (10, doc! {}),
        ];
        let sort = self.random.weighted(&sorts).clone();
        let key = sort.keys().next().cloned().unwrap_or_default();
        if !sort.is_empty() {
            stage.insert("sortBy", sort);
        }
        let mut output = Document::new();
        for _ in 0..self.random.between(1, 2) {
            let name = *self.random.pick(&["w", "w", "x.y", "a", "n", "_id"]);
            let function = self.window_function(&key);
            output.insert(name, function);
        }
        stage.insert("output", output);
        stage
    }

    fn window_function(&mut self, key: &str) -> Document {
        let kinds = [
            (50, "unary"),
            (8, "n"),
            (8, "ranked"),
            (10, "place"),
            (6, "pair"),
            (10, "calculus"),
            (4, "shift"),
            (6, "moving"),
        ];
        let kind = *self.random.weighted(&kinds);
        let (name, argument): (&str, Bson) = match kind {
            "unary" => {
                let (name, letter) = *self.random.pick(UNARY);
                match name {
                    "$count" if self.random.percent(90) => (name, doc! {}.into()),
                    _ => (name, self.argument(letter, 1)),
                }
            }
            "n" => {
                let name = *self.random.pick(N_VALUES);
                let input = self.argument('v', 1);
                (
                    name,
                    doc! { "input": input, "n": self.argument('i', 1) }.into(),
                )
            }
            "ranked" => {
                let name = *self.random.pick(RANKED);
                (name, self.ranked(name))
            }
            "place" => (*self.random.pick(PLACES), doc! {}.into()),
            "pair" => {
                let name = *self.random.pick(PAIRS);
                (
                    name,
                    vec![self.argument('n', 1), self.argument('n', 1)].into(),
                )
            }
            "calculus" => {
                let mut argument = doc! { "input": self.argument('n', 1) };
                if (key == "t") != self.random.percent(8) {
                    argument.insert("unit", *self.random.pick(LENGTHS));
                }
                (*self.random.pick(CALCULUS), argument.into())
            }
            "shift" => {
                let mut argument = doc! { "output": self.argument('v', 1) };
                argument.insert("by", self.literal_number());
                if self.random.percent(50) {
                    argument.insert("default", self.argument('v', 1));
                }
                ("$shift", argument.into())
            }
            _ => ("$expMovingAvg", self.moving_average().into()),
        };
        let mut function = doc! { name: argument };
        let never = matches!(kind, "place" | "shift" | "moving");
        if self.random.percent(if never { 3 } else { 75 }) {
            function.insert("window", self.window(key));
        }
        function
    }

    fn moving_average(&mut self) -> Document {
        let mut argument = doc! { "input": self.argument('n', 1) };
        if self.random.percent(50) {
            argument.insert("N", self.literal_number());
        } else {
            let alphas = ["0.5", "0.1", "1", "0", "NumberDecimal(\"0.25\")", "0.999"];
            let alpha = crate::notation::parse(self.random.pick::<&str>(&alphas));
            argument.insert("alpha", alpha.expect("the pool holds numbers"));
        }
        argument
    }

    /// A number that is mostly small and whole.
    fn literal_number(&mut self) -> Bson {
        match self.random.below(14) {
            0 => self.number(),
            1 => self.value(0),
            _ => Bson::Int32(self.random.between(-2, 4) as i32),
        }
    }

    fn window(&mut self, key: &str) -> Bson {
        let mut window = Document::new();
        let ranges = if matches!(key, "n" | "t") { 70 } else { 25 };
        if self.random.percent(ranges) {
            let low = self.bound(-3, 1);
            window.insert("range", vec![low, self.bound(-1, 3)]);
            if (key == "t") != self.random.percent(6) {
                window.insert("unit", *self.random.pick(LENGTHS));
            }
        } else {
            let low = self.bound(-3, 1);
            window.insert("documents", vec![low, self.bound(-1, 3)]);
        }
        window.into()
    }

    fn bound(&mut self, low: i64, high: i64) -> Bson {
        match self.random.below(20) {
            0..5 => "unbounded".into(),
            5..9 => "current".into(),
            9 => self.number(),
            10 => Bson::Int64(self.random.between(low, high)),
            11 => Bson::Double(self.random.between(low, high) as f64),
            12 => self.value(0),
            _ => Bson::Int32(self.random.between(low, high) as i32),
        }
    }

    pub fn densify(&mut self) -> Document {
        let field = *self
            .random
            .pick(&["n", "n", "t", "t", "_id", "_id", "a", "n.x"]);
        let mut range = Document::new();
        let dates = field == "t" && self.random.percent(95);
        if dates {
            range.insert("step", Bson::Int32(self.random.between(1, 3) as i32));
            range.insert("unit", *self.random.pick(LENGTHS));
        } else {
            let step = match self.random.percent(90) {
                true => self.small_step(),
                false => self.value(0),
            };
            range.insert("step", step);
        }
        let bounds: Bson = match self.random.below(6) {
            0 if !dates => "full".into(),
            1 if !dates => "partition".into(),
            0 | 1 => (*self.random.pick(&["full", "partition"])).into(),
            _ if dates => {
                let from = self.random.between(-5, 2) * 3_600_000;
                let to = self.random.between(0, 9) * 3_600_000;
                let at = |millis| Bson::from(bson::DateTime::from_millis(millis));
                vec![at(from), at(to)].into()
            }
            2 => vec![self.number(), self.number()].into(),
            _ => {
                let low = self.random.between(-3, 5) as i32;
                vec![
                    Bson::Int32(low),
                    Bson::Int32(low + self.random.below(7) as i32),
                ]
                .into()
            }
        };
        range.insert("bounds", bounds);
        let mut stage = doc! { "field": field };
        if self.random.percent(40) {
            let fields = *self.random.pick(&["a", "b", "a.x", "n", "c"]);
            stage.insert("partitionByFields", vec![fields]);
        }
        stage.insert("range", range);
        stage
    }

    pub fn fill(&mut self) -> Document {
        let mut stage = Document::new();
        match self.random.below(4) {
            0 => drop(stage.insert("partitionBy", self.argument('v', 1))),
            1 => drop(stage.insert("partitionByFields", vec![self.path()])),
            _ => {}
        }
        let sorts = [
            (60, doc! { "_id": 1 }),
            (10, doc! { "n": 1 }),
            (10, doc! { "t": -1 }),
            (5, doc! { "a": 1, "_id": 1 }),
            (15, doc! {}),
        ];
        let sort = self.random.weighted(&sorts).clone();
        if !sort.is_empty() {
            stage.insert("sortBy", sort);
        }
        let mut output = Document::new();
        for _ in 0..self.random.between(1, 2) {
            let how = match self.random.below(8) {
                0..3 => doc! { "value": self.argument('v', 1) },
                3..5 => doc! { "method": "linear" },
                5..7 => doc! { "method": "locf" },
                _ => doc! { "method": self.value(0) },
            };
            output.insert(self.path(), how);
        }
        stage.insert("output", output);
        stage
    }
}

use banyan_document::extjson;

use super::*;
use crate::context::Context;
use crate::expression::value::items;
use crate::golden;
use crate::pipeline::{Pipeline, Sort};

fn members(text: &str) -> Vec<Member> {
    let wrapped = extjson::parse(&format!("{{\"p\":{text}}}")).unwrap();
    let stages = wrapped.get_array("p").unwrap();
    let stages: Vec<_> = items(stages)
        .map(|stage| stage.as_document().unwrap())
        .collect();
    Pipeline::members(&stages, &Context::default()).unwrap().0
}

fn shown(members: &[Member]) -> Vec<String> {
    let each = members.iter().map(|member| {
        let text = extjson::relaxed_text(&member.stage.to_document()).unwrap();
        match member.stage.get().and_then(|sort: &Sort| sort.limit) {
            Some(limit) => format!("  {text} (limit {limit})"),
            None => format!("  {text}"),
        }
    });
    each.collect()
}

/// Each pipeline, and what one pass makes of it. The file that is not named after a pass runs all.
fn check(file: &str, run: fn(&mut Vec<Member>)) {
    golden::check(file, |commands| {
        let mut output = Vec::new();
        for command in commands {
            let (_, argument) = golden::split(command);
            output.push(format!("> {argument}"));
            let mut members = members(argument);
            run(&mut members);
            output.extend(shown(&members));
        }
        output
    });
}

macro_rules! passes {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            check(concat!("src/pipeline/optimizer/", stringify!($name), ".golden"), |members| {
                let (_, run) = PASSES.iter().find(|(name, _)| *name == stringify!($name)).unwrap();
                run(members, &Budget::unlimited()).unwrap();
            });
        })*

        #[test]
        fn each_pass_has_a_golden_file() {
            let names: Vec<_> = PASSES.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

passes!(
    drop_idle,
    push_match,
    match_union,
    match_redact,
    split_match,
    push_skip,
    skip_limit,
    coalesce,
    lookup_unwind,
    push_sort,
    sort_limit,
    bucket_bounds,
    group_computed
);

#[test]
fn all_passes() {
    check("src/pipeline/optimizer/optimizer.golden", |members| {
        optimize(members, &Budget::unlimited()).unwrap()
    });
}

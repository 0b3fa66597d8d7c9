//! The rows of scripts that queries call.

use bson::{Bson, Document, doc};

use super::commands::aggregate;
use super::rows::{Row, cursor};

pub fn all() -> Vec<Row> {
    vec![
        cursor("$function: in $project", |_| {
            let twice = doubled("$likes");
            aggregate([doc! { "$project": { "twice": twice } }])
        }),
        cursor("$function: twice in one of two branches", |_| {
            let is_even = doc! { "$eq": [{ "$mod": ["$likes", 2] }, 0] };
            let branch = doc! { "$cond": [is_even, doubled(doubled("$likes")), 0] };
            aggregate([doc! { "$project": { "twice": branch } }])
        }),
        cursor("$function: in $group", |_| {
            let sum = doc! { "$sum": doubled("$likes") };
            aggregate([doc! { "$group": { "_id": "$section", "twice": sum } }])
        }),
        cursor("$function: in $match", |_| {
            let is_even = function("function(likes) { return likes % 2 == 0; }", "$likes");
            aggregate([doc! { "$match": { "$expr": is_even } }])
        }),
        cursor("$where: 1 in 2", |_| {
            doc! { "find": "posts", "filter": { "$where": "this.likes % 2 == 0" } }
        }),
    ]
}

fn function(body: &str, argument: impl Into<Bson>) -> Document {
    doc! { "$function": { "body": body, "args": [argument.into()], "lang": "js" } }
}

fn doubled(argument: impl Into<Bson>) -> Document {
    function("function(n) { return n * 2; }", argument)
}

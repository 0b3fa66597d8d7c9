//! The parts that members of a set have: who leads by priority, who never does, who keeps no data,
//! who is behind on purpose.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use banyan_tests::{Launch, Process, ReplicaSet, eventually};
use bson::{Document, doc};
use mongodb::Client;

use crate::operating::{admin, becomes, configuration, line, refusal};

/// A set whose members have these settings; the first one begins it.
pub(crate) async fn set_of(name: &str, parts: Vec<Document>) -> Result<ReplicaSet> {
    let mut members = Vec::new();
    for _ in &parts {
        let mut process = Launch::mongod().with(["--replSet", name]).prepare();
        process.spawn();
        members.push(process);
    }
    let mut listed = Vec::new();
    for ((id, part), process) in (0_i32..).zip(parts).zip(&mut members) {
        process.ready().await;
        let mut member = doc! { "_id": id, "host": process.host() };
        member.extend(part);
        listed.push(member);
    }
    let configuration = doc! { "_id": name, "members": listed };
    admin(&members[0], doc! { "replSetInitiate": configuration }).await?;
    Ok(ReplicaSet {
        name: name.to_owned(),
        members,
    })
}

async fn leads(set: &ReplicaSet, index: usize) {
    eventually(&format!("member {index} leads"), || async {
        let leader = set.primary().await;
        ensure!(leader == index, "{leader} leads");
        Ok::<_, anyhow::Error>(())
    })
    .await;
}

fn posts(client: &Client) -> mongodb::Collection<Document> {
    client.database("test").collection("posts")
}

async fn has(process: &Process, id: &str) {
    eventually(&format!("{id} arrives"), || async {
        let posts = posts(&process.direct().await);
        ensure!(posts.find_one(doc! { "_id": id }).await?.is_some());
        Ok::<_, anyhow::Error>(())
    })
    .await;
}

#[tokio::test]
async fn the_member_of_the_highest_priority_leads_when_it_is_well() -> Result<()> {
    let parts = vec![
        doc! { "priority": 1 },
        doc! { "priority": 5 },
        doc! { "priority": 0 },
    ];
    let mut set = set_of("ranks", parts).await?;
    leads(&set, 1).await;
    // One that never comes changes nothing for the others.
    let mut config = configuration(&set.members[1]).await?;
    let nobody = format!(
        "{}:1",
        set.members[1].host().rsplit_once(':').context("a port")?.0
    );
    let nobody = doc! { "_id": 3, "host": nobody, "votes": 0, "priority": 0 };
    config.insert("version", config.get_i32("version")? + 1);
    config.get_array_mut("members")?.push(nobody.into());
    admin(&set.members[1], doc! { "replSetReconfig": config }).await?;
    set.members[1].kill();
    // Priority 0 never leads.
    leads(&set, 0).await;
    let client = set.members[0].direct().await;
    posts(&client).insert_one(doc! { "_id": "missed" }).await?;
    set.members[1].start().await;
    leads(&set, 1).await;
    has(&set.members[1], "missed").await;

    // What the highest gives away goes to the next, and never to one of priority 0. While it stays
    // away nobody tries to give the lead back to it, which would hold up writes.
    let away = doc! { "replSetStepDown": 12, "secondaryCatchUpPeriodSecs": 5 };
    admin(&set.members[1], away).await?;
    leads(&set, 0).await;
    let started = Instant::now();
    let mut slowest = Duration::ZERO;
    while started.elapsed() < Duration::from_secs(5) {
        let begun = Instant::now();
        posts(&client).insert_one(doc! {}).await?;
        slowest = slowest.max(begun.elapsed());
    }
    ensure!(
        slowest < Duration::from_millis(900),
        "{slowest:?} for a write"
    );
    ensure!(
        refusal(&set.members[2], doc! { "replSetStepUp": 1 })
            .await?
            .0
            == 125
    );
    Ok(())
}

#[tokio::test]
async fn those_without_a_vote_or_hidden_follow() -> Result<()> {
    let parts = vec![
        doc! {},
        doc! { "priority": 0, "hidden": true, "tags": { "use": "backup" } },
        doc! { "priority": 0, "votes": 0 },
    ];
    let mut set = set_of("shy", parts).await?;
    set.settled().await;
    let client = set.members[0].direct().await;
    posts(&client).insert_one(doc! { "_id": "one" }).await?;
    for follower in &set.members[1..] {
        has(follower, "one").await;
    }
    let hello = admin(&set.members[0], doc! { "hello": 1 }).await?;
    ensure!(hello.get_array("hosts")?.len() == 1, "{hello}");
    ensure!(hello.get_array("passives")?.len() == 1, "{hello}");
    let hidden = admin(&set.members[1], doc! { "hello": 1 }).await?;
    ensure!(
        hidden.get_bool("hidden")? && hidden.get_bool("passive")?,
        "{hidden}"
    );
    let status = admin(&set.members[0], doc! { "replSetGetStatus": 1 }).await?;
    ensure!(status.get_i32("votingMembersCount")? == 2, "{status}");
    ensure!(status.get_i32("majorityVoteCount")? == 2, "{status}");

    // The one without a vote is not missed, the other one is.
    set.members[2].kill();
    let host = set.members[2].host();
    becomes(&set.members[0], &host, "(not reachable/healthy)").await;
    posts(&client).insert_one(doc! { "_id": "two" }).await?;
    set.members[1].kill();
    eventually("nobody leads", || async {
        let hello = admin(&set.members[0], doc! { "hello": 1 }).await?;
        ensure!(!hello.get_bool("isWritablePrimary")?, "{hello}");
        Ok::<_, anyhow::Error>(())
    })
    .await;
    set.members[1].start().await;
    leads(&set, 0).await;
    Ok(())
}

#[tokio::test]
async fn an_arbiter_votes_and_keeps_no_data() -> Result<()> {
    let parts = vec![doc! {}, doc! {}, doc! { "arbiterOnly": true }];
    let mut set = set_of("judge", parts).await?;
    let first = set.primary().await;
    let arbiter = set.members[2].host();
    let seen = becomes(&set.members[first], &arbiter, "ARBITER").await;
    ensure!(!seen.contains_key("optime"), "{seen}");
    let second = 1 - first;
    becomes(
        &set.members[first],
        &set.members[second].host(),
        "SECONDARY",
    )
    .await;
    let client = set.members[first].direct().await;
    posts(&client).insert_one(doc! { "_id": "one" }).await?;
    has(&set.members[second], "one").await;

    let hello = admin(&set.members[2], doc! { "hello": 1 }).await?;
    ensure!(
        hello.get_bool("arbiterOnly")? && !hello.get_bool("secondary")?,
        "{hello}"
    );
    ensure!(hello.get_array("arbiters")?.len() == 1, "{hello}");
    let read = doc! { "find": "posts", "$readPreference": { "mode": "nearest" } };
    let refused = set.members[2]
        .direct()
        .await
        .database("test")
        .run_command(read)
        .await;
    ensure!(refused.is_err(), "an arbiter read: {refused:?}");

    // With its vote the other one takes over.
    set.members[first].kill();
    leads(&set, second).await;
    let client = set.members[second].direct().await;
    posts(&client).insert_one(doc! { "_id": "two" }).await?;
    // It's still one after a restart.
    set.members[2].kill();
    set.members[2].start().await;
    becomes(&set.members[second], &arbiter, "ARBITER").await;
    posts(&client).insert_one(doc! { "_id": "three" }).await?;
    set.members[first].start().await;
    has(&set.members[first], "three").await;
    Ok(())
}

#[tokio::test]
async fn a_delayed_member_is_behind_by_what_was_asked_for() -> Result<()> {
    const DELAY: Duration = Duration::from_secs(4);
    let delayed = doc! { "priority": 0, "hidden": true, "secondaryDelaySecs": 4 };
    let set = set_of("late", vec![doc! {}, doc! {}, delayed]).await?;
    let first = set.primary().await;
    let host = set.members[2].host();
    becomes(&set.members[first], &host, "SECONDARY").await;
    let client = set.members[first].direct().await;
    let started = Instant::now();
    posts(&client).insert_one(doc! { "_id": "one" }).await?;
    has(&set.members[1 - first], "one").await;
    let soon = started.elapsed();
    let found = posts(&set.members[2].direct().await)
        .find_one(doc! {})
        .await?;
    ensure!(soon > DELAY || found.is_none(), "{soon:?}: {found:?}");
    has(&set.members[2], "one").await;
    ensure!(started.elapsed() >= DELAY, "after {:?}", started.elapsed());
    let shown = line(&set.members[first], &host).await?;
    ensure!(shown.get_i32("state")? == 2, "{shown}");
    Ok(())
}

#[tokio::test]
async fn a_removed_member_knows_that_it_is_none_any_more() -> Result<()> {
    let set = set_of("leaves", vec![doc! {}, doc! {}, doc! {}]).await?;
    set.settled().await;
    let first = set.primary().await;
    let removed = (first + 1) % 3;
    let host = set.members[removed].host();
    let change = |keep: bool| {
        let (set, host) = (&set, host.clone());
        async move {
            let primary = &set.members[set.primary().await];
            let mut next = configuration(primary).await?;
            next.insert("version", next.get_i32("version")? + 1);
            let members = next.get_array_mut("members")?;
            members.retain(|member| {
                let member = member.as_document().expect("members are documents");
                member.get_str("host").is_ok_and(|other| other != host)
            });
            if keep {
                members.push(doc! { "_id": 9, "host": host }.into());
            }
            admin(primary, doc! { "replSetReconfig": next }).await
        }
    };
    change(false).await?;
    let own = &set.members[removed];
    eventually("it knows", || async {
        let (code, said) = refusal(own, doc! { "replSetGetStatus": 1 }).await?;
        ensure!(code == 93 && said.contains("not a member of it"), "{said}");
        Ok::<_, anyhow::Error>(())
    })
    .await;
    let hello = admin(own, doc! { "hello": 1 }).await?;
    ensure!(
        !hello.get_bool("secondary")? && !hello.get_bool("isWritablePrimary")?,
        "{hello}"
    );
    let primary = &set.members[set.primary().await];
    posts(&primary.direct().await)
        .insert_one(doc! { "_id": "meanwhile" })
        .await?;
    change(true).await?;
    becomes(&set.members[set.primary().await], &host, "SECONDARY").await;
    has(own, "meanwhile").await;
    Ok(())
}

//! A set that has lost its majority is made to go on without it.

use anyhow::{Context, Result, ensure};
use banyan_tests::{Launch, Process, ReplicaSet, eventually};
use bson::{Document, doc};

use crate::operating::{admin, becomes, configuration, refusal};

async fn insert(process: &Process, id: &str) -> Result<()> {
    let posts = process.direct().await.database("test").collection("posts");
    posts.insert_one(doc! { "_id": id }).await?;
    Ok(())
}

async fn ids(process: &Process) -> Result<Vec<String>> {
    let posts = process.direct().await.database("test");
    let posts = posts.collection::<Document>("posts");
    let mut ids = Vec::new();
    for id in posts.distinct("_id", doc! {}).await? {
        ids.push(id.as_str().unwrap_or_default().to_owned());
    }
    ids.sort();
    Ok(ids)
}

fn keeping(mut config: Document, hosts: &[String]) -> Result<Document> {
    config.insert("version", config.get_i32("version")? + 1);
    config.get_array_mut("members")?.retain(|member| {
        let member = member.as_document().expect("members are documents");
        let host = member.get_str("host").unwrap_or_default();
        hosts.iter().any(|kept| kept == host)
    });
    Ok(config)
}

#[tokio::test]
async fn the_last_of_three_goes_on_alone_and_the_others_come_back() -> Result<()> {
    let mut set = ReplicaSet::start("forced", 3, &[]).await;
    let first = set.primary().await;
    let (last, second) = ((first + 1) % 3, (first + 2) % 3);
    insert(&set.members[first], "before").await?;
    eventually("it has come over", || async {
        ensure!(ids(&set.members[last]).await? == ["before"]);
        Ok::<_, anyhow::Error>(())
    })
    .await;
    set.members[first].kill();
    set.members[second].kill();
    let survivor = &set.members[last];
    eventually("nobody leads", || async {
        let hello = admin(survivor, doc! { "hello": 1 }).await?;
        ensure!(!hello.contains_key("primary"), "{hello}");
        Ok::<_, anyhow::Error>(())
    })
    .await;

    let before = configuration(survivor).await?;
    let next = keeping(
        before.clone(),
        &[survivor.host(), set.members[second].host()],
    )?;
    let ordinary = refusal(survivor, doc! { "replSetReconfig": next.clone() }).await?;
    ensure!(ordinary.0 == 10107, "{ordinary:?}");
    let forced = admin(survivor, doc! { "replSetReconfig": next, "force": true }).await?;
    ensure!(forced.get_str("warning")?.contains("are lost"), "{forced}");
    insert(survivor, "alone").await?;
    let now = configuration(survivor).await?;
    let leap = now.get_i32("version")? - before.get_i32("version")?;
    ensure!(leap >= 10_000, "{now}");

    // One that was kept follows again, whatever it believed; one that was not learns of that.
    let host = set.members[second].host();
    set.members[second].start().await;
    becomes(&set.members[last], &host, "SECONDARY").await;
    eventually("it has what was written without it", || async {
        ensure!(ids(&set.members[second]).await? == ["alone", "before"]);
        Ok::<_, anyhow::Error>(())
    })
    .await;
    set.members[first].start().await;
    eventually("the third is removed", || async {
        let (code, _) = refusal(&set.members[first], doc! { "replSetGetStatus": 1 }).await?;
        ensure!(code == 93, "{code}");
        Ok::<_, anyhow::Error>(())
    })
    .await;

    let mut all = configuration(&set.members[last]).await?;
    all.insert("version", all.get_i32("version")? + 1);
    let again = doc! { "_id": 7, "host": set.members[first].host() };
    all.get_array_mut("members")?.push(again.into());
    admin(&set.members[last], doc! { "replSetReconfig": all }).await?;
    set.settled().await;
    insert(&set.members[set.primary().await], "together").await?;
    eventually("all have all", || async {
        for member in &set.members {
            ensure!(ids(member).await? == ["alone", "before", "together"]);
        }
        Ok::<_, anyhow::Error>(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn two_former_members_that_come_back_together_do_not_elect_each_other() -> Result<()> {
    let mut set = ReplicaSet::start("apart", 3, &[]).await;
    let first = set.primary().await;
    let last = (first + 1) % 3;
    let second = (first + 2) % 3;
    set.members[first].kill();
    set.members[second].kill();
    let survivor = &set.members[last];
    let alone = keeping(configuration(survivor).await?, &[survivor.host()])?;
    admin(survivor, doc! { "replSetReconfig": alone, "force": true }).await?;
    insert(survivor, "alone").await?;
    set.members[first].spawn();
    set.members[second].spawn();
    for index in [first, second] {
        set.members[index].ready().await;
        eventually("it knows that it is none any more", || async {
            let hello = admin(&set.members[index], doc! { "hello": 1 }).await?;
            ensure!(!hello.get_bool("isWritablePrimary")?, "it leads: {hello}");
            let status = doc! { "replSetGetStatus": 1 };
            let (code, _) = refusal(&set.members[index], status).await?;
            ensure!(code == 93, "{code}");
            Ok::<_, anyhow::Error>(())
        })
        .await;
        let hello = admin(&set.members[index], doc! { "hello": 1 }).await?;
        ensure!(!hello.get_bool("isWritablePrimary")?, "{hello}");
    }
    ensure!(set.primary().await == last);
    for index in [first, second] {
        let log = set.members[index].log();
        let elected = log.matches("became the primary").count();
        ensure!(index == first || elected == 0, "{log}");
    }
    Ok(())
}

#[tokio::test]
async fn with_a_primary_force_needs_no_force() -> Result<()> {
    let set = ReplicaSet::start("gentle", 3, &[]).await;
    let first = set.primary().await;
    let other = &set.members[(first + 1) % 3];
    let mut next = configuration(other).await?;
    next.get_document_mut("settings")?
        .insert("electionTimeoutMillis", 1200);
    // Passed to the primary, which goes on to be it.
    let passed = admin(other, doc! { "replSetReconfig": next, "force": true }).await?;
    ensure!(!passed.contains_key("warning"), "{passed}");
    ensure!(set.primary().await == first);
    let now = configuration(&set.members[first]).await?;
    ensure!(now.get_i32("version")? > 10_000, "{now}");
    ensure!(
        now.get_document("settings")?
            .get_i32("electionTimeoutMillis")?
            == 1200
    );
    Ok(())
}

#[tokio::test]
async fn a_set_that_has_moved_as_a_whole_is_told_where_it_is() -> Result<()> {
    let mut set = ReplicaSet::start("moved", 3, &[]).await;
    insert(&set.members[set.primary().await], "before").await?;
    for member in &set.members {
        eventually("it is everywhere", || async {
            ensure!(ids(member).await? == ["before"]);
            Ok::<_, anyhow::Error>(())
        })
        .await;
    }
    let mut moved = Vec::new();
    for member in &mut set.members {
        member.stop().await;
        let data = member.data_directory().to_owned();
        let mut elsewhere = Launch::mongod()
            .with(["--replSet", "moved"])
            .prepare_on(data);
        elsewhere.start().await;
        moved.push(elsewhere);
    }
    let mut next = configuration(&moved[0]).await?;
    next.insert("version", next.get_i32("version")? + 1);
    for (listed, member) in next.get_array_mut("members")?.iter_mut().zip(&moved) {
        let listed = listed.as_document_mut().expect("members are documents");
        listed.insert("host", member.host());
    }
    // Only the one with the longest log takes it, and says where that is.
    let force = doc! { "replSetReconfig": next, "force": true };
    let mut leads = None;
    for member in &moved {
        if leads.is_none() && admin(member, force.clone()).await.is_ok() {
            leads = Some(member);
        }
    }
    let leads = leads.context("nobody took the configuration")?;
    for member in &moved {
        let others = moved.iter().filter(|other| other.port != leads.port);
        for other in others {
            becomes(member, &other.host(), "SECONDARY").await;
        }
    }
    insert(leads, "moved").await?;
    for member in &moved {
        eventually("it goes on", || async {
            ensure!(ids(member).await? == ["before", "moved"]);
            Ok::<_, anyhow::Error>(())
        })
        .await;
    }
    Ok(())
}

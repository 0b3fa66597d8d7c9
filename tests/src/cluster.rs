//! A sharded cluster: config servers, shards, one router.

use bson::doc;
use mongodb::Client;

use super::process::{Launch, Process, ReplicaSet, connect};

#[derive(Clone, Copy, Debug)]
pub struct ClusterShape {
    pub shards: usize,
    pub members_per_shard: usize,
    pub configs: usize,
}

impl Default for ClusterShape {
    fn default() -> Self {
        Self {
            shards: 2,
            members_per_shard: 1,
            configs: 1,
        }
    }
}

pub struct Cluster {
    pub router: Process,
    pub shards: Vec<ReplicaSet>,
    pub config: ReplicaSet,
}

impl Cluster {
    pub async fn start(shape: ClusterShape) -> Self {
        Self::start_with(shape, &[]).await
    }

    /// With these flags for every process of it.
    pub async fn start_with(shape: ClusterShape, every: &[&str]) -> Self {
        Self::start_as(shape, |launch| launch.with_all(every)).await
    }

    /// With every process of it started so.
    pub async fn start_as(shape: ClusterShape, every: impl Fn(Launch) -> Launch) -> Self {
        let launch = every(Launch::configsvr());
        let config = ReplicaSet::start_as(launch, "config", shape.configs, &[]).await;
        let mut shards = Vec::new();
        for shard in 0..shape.shards {
            let name = format!("shard{shard}");
            // Orphans go at once, so that whoever counts on them is found out.
            let own = ["--shardsvr", "--setParameter", "orphanCleanupDelaySecs=0"];
            let launch = every(Launch::mongod());
            shards.push(ReplicaSet::start_as(launch, &name, shape.members_per_shard, &own).await);
        }
        let launch = Launch::mongos(&config.connection_string());
        let router = every(launch).start().await;
        let cluster = Self {
            router,
            shards,
            config,
        };
        let admin = cluster.client().await.database("admin");
        for shard in &cluster.shards {
            admin
                .run_command(doc! { "addShard": shard.connection_string(), "name": &shard.name })
                .await
                .expect("the shard is added");
        }
        cluster
    }

    /// A client of the router.
    pub async fn client(&self) -> Client {
        connect(&self.router.uri_with("directConnection=false")).await
    }
}

//! Built-in roles, as MongoDB 6.0 answers `rolesInfo` with `showPrivileges` for them, with what newer
//! versions grant for features of theirs that are here: statistics and settings of queries.

use crate::action::{Action, ActionSet};
use crate::privilege::{Privilege, Privileges};
use crate::resource::ResourcePattern;
use crate::role_name::RoleName;

/// The roles that every database has.
pub const IN_EVERY_DATABASE: &[&str] = &[
    "dbAdmin",
    "dbOwner",
    "enableSharding",
    "read",
    "readWrite",
    "userAdmin",
];

/// The roles that only `admin` has besides.
pub const IN_ADMIN: &[&str] = &[
    "__queryableBackup",
    "__system",
    "backup",
    "clusterAdmin",
    "clusterManager",
    "clusterMonitor",
    "dbAdminAnyDatabase",
    "directShardOperations",
    "hostManager",
    "readAnyDatabase",
    "readWriteAnyDatabase",
    "restore",
    "root",
    "userAdminAnyDatabase",
];

/// Whether the database has a built-in role of that name.
pub fn exists(name: &RoleName) -> bool {
    let role = name.role.as_str();
    IN_EVERY_DATABASE.contains(&role) || (name.database == "admin" && IN_ADMIN.contains(&role))
}

/// What a built-in role grants; none where no such role exists.
pub fn privileges(name: &RoleName) -> Option<Privileges> {
    if !exists(name) {
        return None;
    }
    let database = name.database.as_str();
    let mut role = Grants::default();
    match name.role.as_str() {
        "read" => role.read(database),
        "readWrite" => role.read_write(database),
        "dbAdmin" => role.db_admin(database),
        "userAdmin" => role.give(whole(database), USER_ADMIN),
        "dbOwner" => {
            role.read_write(database);
            role.db_admin(database);
            role.give(whole(database), USER_ADMIN);
        }
        "enableSharding" => role.give(ResourcePattern::AnyNormal, ENABLE_SHARDING),
        "readAnyDatabase" => role.any_database(READ),
        "readWriteAnyDatabase" => role.any_database(READ_WRITE),
        "dbAdminAnyDatabase" => role.db_admin_any_database(),
        "userAdminAnyDatabase" => role.user_admin_any_database(),
        "clusterMonitor" => role.cluster_monitor(),
        "hostManager" => role.host_manager(),
        "clusterManager" => role.cluster_manager(),
        "clusterAdmin" => role.cluster_admin(),
        "backup" => role.backup(),
        "__queryableBackup" => role.queryable_backup(),
        "restore" => role.restore(),
        "root" => role.root(),
        "__system" => role.give(ResourcePattern::AnyResource, &[Action::AnyAction]),
        // `directShardOperations` marks its owner and grants nothing.
        _ => {}
    }
    Some(role.0)
}

const READ: &[Action] = &[
    Action::ChangeStream,
    Action::CollStats,
    Action::DbHash,
    Action::DbStats,
    Action::Find,
    Action::KillCursors,
    Action::ListCollections,
    Action::ListIndexes,
    Action::PlanCacheRead,
];

const READ_WRITE: &[Action] = &[
    Action::ChangeStream,
    Action::CollStats,
    Action::CompactStructuredEncryptionData,
    Action::ConvertToCapped,
    Action::CreateCollection,
    Action::CreateIndex,
    Action::DbHash,
    Action::DbStats,
    Action::DropCollection,
    Action::DropIndex,
    Action::Find,
    Action::Insert,
    Action::KillCursors,
    Action::ListCollections,
    Action::ListIndexes,
    Action::PlanCacheRead,
    Action::Remove,
    Action::RenameCollectionSameDB,
    Action::Update,
];

const DB_ADMIN: &[Action] = &[
    Action::BypassDocumentValidation,
    Action::CollMod,
    Action::CollStats,
    Action::Compact,
    Action::ConvertToCapped,
    Action::CreateCollection,
    Action::CreateIndex,
    Action::DbStats,
    Action::DropCollection,
    Action::DropDatabase,
    Action::DropIndex,
    Action::EnableProfiler,
    Action::ListCollections,
    Action::ListIndexes,
    Action::PlanCacheIndexFilter,
    Action::PlanCacheRead,
    Action::PlanCacheWrite,
    Action::ReIndex,
    Action::RenameCollectionSameDB,
    Action::StorageDetails,
    Action::Validate,
];

/// What an administrator of a database may do to `system.profile` beyond reading it.
const PROFILE: &[Action] = &[
    Action::ConvertToCapped,
    Action::CreateCollection,
    Action::DropCollection,
];

const USER_ADMIN: &[Action] = &[
    Action::ChangeCustomData,
    Action::ChangePassword,
    Action::CreateRole,
    Action::CreateUser,
    Action::DropRole,
    Action::DropUser,
    Action::GrantRole,
    Action::RevokeRole,
    Action::SetAuthenticationRestriction,
    Action::ViewRole,
    Action::ViewUser,
];

const ENABLE_SHARDING: &[Action] = &[
    Action::EnableSharding,
    Action::RefineCollectionShardKey,
    Action::ReshardCollection,
];

const MONITOR_CLUSTER: &[Action] = &[
    Action::AllCollectionStats,
    Action::CheckFreeMonitoringStatus,
    Action::ConnPoolStats,
    Action::GetCmdLineOpts,
    Action::GetDefaultRWConcern,
    Action::GetLog,
    Action::GetParameter,
    Action::GetShardMap,
    Action::HostInfo,
    Action::Inprog,
    Action::ListDatabases,
    Action::ListSessions,
    Action::ListShards,
    Action::Netstat,
    Action::OperationMetrics,
    Action::QueryStatsRead,
    Action::QueryStatsReadTransformed,
    Action::ReplSetGetConfig,
    Action::ReplSetGetStatus,
    Action::ServerStatus,
    Action::ShardedDataDistribution,
    Action::ShardingState,
    Action::Top,
    Action::UseUUID,
];

const MONITOR_DATABASE: &[Action] = &[
    Action::CollStats,
    Action::DbStats,
    Action::GetDatabaseVersion,
    Action::GetShardVersion,
    Action::IndexStats,
];

const HOST_MANAGER: &[Action] = &[
    Action::ApplicationMessage,
    Action::AuditConfigure,
    Action::Compact,
    Action::ConnPoolSync,
    Action::DropConnections,
    Action::FlushRouterConfig,
    Action::Fsync,
    Action::InvalidateUserCache,
    Action::KillAnyCursor,
    Action::KillAnySession,
    Action::Killop,
    Action::LogRotate,
    Action::OidReset,
    Action::ReplSetResizeOplog,
    Action::Resync,
    Action::RotateCertificates,
    Action::SetParameter,
    Action::Shutdown,
    Action::Touch,
    Action::TrafficRecord,
    Action::Unlock,
];

const MANAGE_CLUSTER: &[Action] = &[
    Action::AddShard,
    Action::AppendOplogNote,
    Action::ApplicationMessage,
    Action::CleanupOrphaned,
    Action::FlushRouterConfig,
    Action::GetClusterParameter,
    Action::GetDefaultRWConcern,
    Action::ListSessions,
    Action::ListShards,
    Action::QuerySettings,
    Action::RemoveShard,
    Action::ReplSetConfigure,
    Action::ReplSetGetConfig,
    Action::ReplSetGetStatus,
    Action::ReplSetStateChange,
    Action::Resync,
    Action::RunTenantMigration,
    Action::SetClusterParameter,
    Action::SetDefaultRWConcern,
    Action::SetFeatureCompatibilityVersion,
    Action::SetFreeMonitoring,
];

const MANAGE_CHUNKS: &[Action] = &[
    Action::ClearJumboFlag,
    Action::EnableSharding,
    Action::MoveChunk,
    Action::RefineCollectionShardKey,
    Action::ReshardCollection,
    Action::SplitChunk,
    Action::SplitVector,
];

const WRITE: &[Action] = &[Action::Insert, Action::Remove, Action::Update];

const FIND: &[Action] = &[Action::Find];

const RESTORE: &[Action] = &[
    Action::BypassDocumentValidation,
    Action::CollMod,
    Action::ConvertToCapped,
    Action::CreateCollection,
    Action::CreateIndex,
    Action::DropCollection,
    Action::Insert,
];

fn whole(database: &str) -> ResourcePattern {
    ResourcePattern::Database(database.to_owned())
}

fn collection(database: &str, collection: &str) -> ResourcePattern {
    ResourcePattern::Collection {
        database: database.to_owned(),
        collection: collection.to_owned(),
    }
}

fn collections_named(name: &str) -> ResourcePattern {
    ResourcePattern::CollectionName(name.to_owned())
}

fn all_buckets() -> ResourcePattern {
    ResourcePattern::Buckets {
        database: None,
        collection: None,
    }
}

/// A built-in role while it is put together.
#[derive(Default)]
struct Grants(Privileges);

impl Grants {
    fn give(&mut self, resource: ResourcePattern, actions: &[Action]) {
        self.0.add(Privilege {
            resource,
            actions: ActionSet::of(actions),
        });
    }

    fn give_on(&mut self, database: &str, names: &[&str], actions: &[Action]) {
        for name in names {
            self.give(collection(database, name), actions);
        }
    }

    fn cluster(&mut self, actions: &[Action]) {
        self.give(ResourcePattern::Cluster, actions);
    }

    fn read(&mut self, database: &str) {
        self.give(whole(database), READ);
        self.give(collection(database, "system.js"), READ);
    }

    fn read_write(&mut self, database: &str) {
        self.give(whole(database), READ_WRITE);
        self.give(collection(database, "system.js"), READ_WRITE);
    }

    fn db_admin(&mut self, database: &str) {
        self.give(whole(database), DB_ADMIN);
        self.give(collection(database, "system.profile"), READ);
        self.give(collection(database, "system.profile"), PROFILE);
    }

    fn any_database(&mut self, actions: &[Action]) {
        self.give(ResourcePattern::AnyNormal, actions);
        self.cluster(&[Action::ListDatabases]);
        self.give(collections_named("system.js"), actions);
        self.give(all_buckets(), actions);
    }

    fn db_admin_any_database(&mut self) {
        self.cluster(&[Action::ListDatabases, Action::ApplyOps]);
        self.give(ResourcePattern::AnyNormal, DB_ADMIN);
        self.give(collections_named("system.profile"), READ);
        self.give(collections_named("system.profile"), PROFILE);
        self.give(all_buckets(), DB_ADMIN);
    }

    fn user_admin_any_database(&mut self) {
        self.give(ResourcePattern::AnyNormal, USER_ADMIN);
        self.give(
            ResourcePattern::AnyNormal,
            &[Action::ListCachedAndActiveUsers],
        );
        self.give(whole("local"), USER_ADMIN);
        self.give(whole("config"), USER_ADMIN);
        self.cluster(&[
            Action::AuthSchemaUpgrade,
            Action::InvalidateUserCache,
            Action::ListDatabases,
            Action::ViewUser,
        ]);
        self.give(collections_named("system.users"), READ);
        self.give_on(
            "admin",
            &[
                "system.users",
                "system.roles",
                "system.version",
                "system.backup_users",
            ],
            READ,
        );
        self.give_on(
            "admin",
            &["system.users", "system.roles"],
            &[Action::CreateIndex, Action::DropIndex],
        );
    }

    fn cluster_monitor(&mut self) {
        self.cluster(MONITOR_CLUSTER);
        self.give(ResourcePattern::AnyNormal, MONITOR_DATABASE);
        for database in ["config", "local"] {
            self.give(whole(database), MONITOR_DATABASE);
            self.read(database);
        }
        self.give(collection("config", "system.sessions"), MONITOR_DATABASE);
        self.give_on(
            "local",
            &["system.replset", "replset.election", "replset.minvalid"],
            FIND,
        );
        self.give(collections_named("system.profile"), FIND);
    }

    fn host_manager(&mut self) {
        self.cluster(HOST_MANAGER);
        self.give(ResourcePattern::AnyNormal, &[Action::KillCursors]);
    }

    fn cluster_manager(&mut self) {
        self.cluster(MANAGE_CLUSTER);
        self.give(ResourcePattern::AnyNormal, MANAGE_CHUNKS);
        self.give(all_buckets(), MANAGE_CHUNKS);
        self.read("config");
        for database in ["config", "local"] {
            self.give(whole(database), MANAGE_CHUNKS);
            self.give(whole(database), WRITE);
        }
        self.give_on("local", &["system.replset", "system.healthlog"], READ);
        self.give(ResourcePattern::AnyResource, &[Action::DbCheck]);
        self.give_on("local", &["replset.election", "replset.minvalid"], WRITE);
    }

    fn cluster_admin(&mut self) {
        self.cluster_monitor();
        self.host_manager();
        self.cluster_manager();
        self.give(ResourcePattern::AnyNormal, &[Action::DropDatabase]);
        self.give(
            ResourcePattern::AnyResource,
            &[Action::ExportCollection, Action::ImportCollection],
        );
    }

    fn queryable_backup(&mut self) {
        self.give(
            ResourcePattern::AnyResource,
            &[
                Action::CollStats,
                Action::ListCollections,
                Action::ListIndexes,
            ],
        );
        self.give(ResourcePattern::AnyNormal, FIND);
        self.give(all_buckets(), FIND);
        self.cluster(&[Action::GetParameter, Action::ListDatabases, Action::UseUUID]);
        self.give(whole("config"), FIND);
        self.give(whole("local"), FIND);
        self.give_on("local", &["replset.election", "replset.minvalid"], FIND);
        for name in ["system.js", "system.users", "system.profile"] {
            self.give(collections_named(name), FIND);
        }
        self.give_on(
            "admin",
            &["system.backup_users", "system.roles", "system.version"],
            FIND,
        );
        self.give(collection("config", "settings"), FIND);
    }

    fn backup(&mut self) {
        self.queryable_backup();
        self.cluster(&[
            Action::AppendOplogNote,
            Action::ServerStatus,
            Action::SetUserWriteBlockMode,
        ]);
        self.give(
            collection("config", "settings"),
            &[Action::Insert, Action::Update],
        );
    }

    fn restore(&mut self) {
        self.give(ResourcePattern::AnyNormal, RESTORE);
        self.give(ResourcePattern::AnyNormal, USER_ADMIN);
        self.give(collections_named("system.js"), RESTORE);
        self.give(ResourcePattern::AnyResource, &[Action::ListCollections]);
        self.give(whole("config"), RESTORE);
        self.give(all_buckets(), RESTORE);
        self.give_on(
            "local",
            &["system.replset", "replset.election", "replset.minvalid"],
            RESTORE,
        );
        self.give(whole("local"), RESTORE);
        self.give_on("admin", &["tempusers", "temproles"], FIND);
        self.give_on("admin", &["system.backup_users", "system.version"], RESTORE);
        self.give(collection("admin", "system.version"), FIND);
        self.give(collections_named("system.users"), RESTORE);
        self.give(collections_named("system.users"), FIND);
        self.give(
            collections_named("system.users"),
            &[Action::Remove, Action::Update],
        );
        self.cluster(&[
            Action::ApplyOps,
            Action::BypassWriteBlockingMode,
            Action::ForceUUID,
            Action::GetParameter,
            Action::SetUserWriteBlockMode,
            Action::UseUUID,
        ]);
        self.give(collection("admin", "system.roles"), &[Action::CreateIndex]);
    }

    fn root(&mut self) {
        self.cluster_admin();
        self.user_admin_any_database();
        self.db_admin_any_database();
        self.any_database(READ_WRITE);
        self.restore();
        self.backup();
        self.give(ResourcePattern::AnyResource, &[Action::Validate]);
        self.cluster(&[Action::UseTenant]);
        self.give(
            collection("config", "system.preimages"),
            &[Action::Find, Action::Remove],
        );
    }
}

//! The messages of multi-device models (IR version 11), which place parts of tensors on devices.
//!
//! souk plans placement itself and only preserves these messages.

use super::DimensionValue;

/// The devices that a multi-device model was arranged for.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceConfigurationProto {
    /// Name of the configuration.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Number of devices.
    #[prost(int32, optional, tag = "2")]
    pub num_devices: Option<i32>,
    /// Names of the devices.
    #[prost(string, repeated, tag = "3")]
    pub device: Vec<String>,
}

/// The placement of a node in a multi-device model.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeDeviceConfigurationProto {
    /// The configuration that this placement belongs to.
    #[prost(string, optional, tag = "1")]
    pub configuration_id: Option<String>,
    /// The division of each of its tensors.
    #[prost(message, repeated, tag = "2")]
    pub sharding_spec: Vec<ShardingSpecProto>,
    /// Pipeline stage.
    #[prost(int32, optional, tag = "3")]
    pub pipeline_stage: Option<i32>,
}

/// The division of a tensor over devices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ShardingSpecProto {
    /// Name of the tensor.
    #[prost(string, optional, tag = "1")]
    pub tensor_name: Option<String>,
    /// Indices of devices or device groups.
    #[prost(int64, repeated, packed = "false", tag = "2")]
    pub device: Vec<i64>,
    /// Members of each group.
    #[prost(message, repeated, tag = "3")]
    pub index_to_device_group_map: Vec<IntIntListEntryProto>,
    /// Divided dimensions.
    #[prost(message, repeated, tag = "4")]
    pub sharded_dim: Vec<ShardedDimProto>,
}

/// An integer and its list.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct IntIntListEntryProto {
    /// Index of the device group.
    #[prost(int64, optional, tag = "1")]
    pub key: Option<i64>,
    /// Indices of its devices.
    #[prost(int64, repeated, packed = "false", tag = "2")]
    pub value: Vec<i64>,
}

/// A divided dimension.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ShardedDimProto {
    /// Index of the axis.
    #[prost(int64, optional, tag = "1")]
    pub axis: Option<i64>,
    /// The steps of its division, from the outside in.
    #[prost(message, repeated, tag = "2")]
    pub simple_sharding: Vec<SimpleShardedDimProto>,
}

/// One step of the division of a dimension.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SimpleShardedDimProto {
    /// Extent before division.
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub dim: Option<DimensionValue>,
    /// Number of pieces.
    #[prost(int64, optional, tag = "3")]
    pub num_shards: Option<i64>,
}

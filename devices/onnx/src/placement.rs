//! The messages of multi-device models (IR version 11): which device holds which part of a tensor.
//!
//! souk plans placement itself and only carries these along.

use super::DimensionValue;

/// Devices a multi-device model was arranged for.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceConfigurationProto {
    /// Name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// How many devices.
    #[prost(int32, optional, tag = "2")]
    pub num_devices: Option<i32>,
    /// Their names.
    #[prost(string, repeated, tag = "3")]
    pub device: Vec<String>,
}

/// Where a node runs in a multi-device model.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeDeviceConfigurationProto {
    /// Which configuration this is for.
    #[prost(string, optional, tag = "1")]
    pub configuration_id: Option<String>,
    /// How its tensors are divided.
    #[prost(message, repeated, tag = "2")]
    pub sharding_spec: Vec<ShardingSpecProto>,
    /// Pipeline stage.
    #[prost(int32, optional, tag = "3")]
    pub pipeline_stage: Option<i32>,
}

/// How a tensor is divided over devices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ShardingSpecProto {
    /// The tensor.
    #[prost(string, optional, tag = "1")]
    pub tensor_name: Option<String>,
    /// Devices or device groups.
    #[prost(int64, repeated, packed = "false", tag = "2")]
    pub device: Vec<i64>,
    /// Members of each group.
    #[prost(message, repeated, tag = "3")]
    pub index_to_device_group_map: Vec<IntIntListEntryProto>,
    /// Divided dimensions.
    #[prost(message, repeated, tag = "4")]
    pub sharded_dim: Vec<ShardedDimProto>,
}

/// An integer and the list it stands for.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct IntIntListEntryProto {
    /// Key.
    #[prost(int64, optional, tag = "1")]
    pub key: Option<i64>,
    /// Values.
    #[prost(int64, repeated, packed = "false", tag = "2")]
    pub value: Vec<i64>,
}

/// A divided dimension.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ShardedDimProto {
    /// Axis.
    #[prost(int64, optional, tag = "1")]
    pub axis: Option<i64>,
    /// How it is divided, from the outside in.
    #[prost(message, repeated, tag = "2")]
    pub simple_sharding: Vec<SimpleShardedDimProto>,
}

/// One step of dividing a dimension.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SimpleShardedDimProto {
    /// Extent before division.
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub dim: Option<DimensionValue>,
    /// Number of pieces.
    #[prost(int64, optional, tag = "3")]
    pub num_shards: Option<i64>,
}

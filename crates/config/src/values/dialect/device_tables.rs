//! The families about connections of devices, which both dialects have.

use super::FamilyKind::{Counter, Gauge};
use super::Label::{Direction, Protocol, Reason, Route};
use super::tables::of_process;
use super::{FamilySpec, Measure};
use stillgate_metrics::Merge::{Last, Sum};

/// The families about devices.
pub(super) const DEVICES: &[FamilySpec] = &[
    of_process(
        Measure::WorkerCount("devices_open"),
        "stillgate_devices_connected",
        "",
        Gauge(Sum),
        &[],
        "Connections of devices open now, by device-gateway.",
    ),
    of_process(
        Measure::DeviceConnections,
        "stillgate_device_connections_total",
        "",
        Counter,
        &[Route, Protocol],
        "Connections of devices that have begun.",
    ),
    of_process(
        Measure::DeviceDisconnections,
        "stillgate_device_disconnections_total",
        "",
        Counter,
        &[Route, Protocol, Reason],
        "Connections of devices that have ended. Each adds to the families of requests, too.",
    ),
    of_process(
        Measure::DeviceMessages,
        "stillgate_device_messages_total",
        "",
        Counter,
        &[Route, Protocol, Direction],
        "Messages to devices, and what devices have said: acknowledgements, replies, events.",
    ),
    of_process(
        Measure::DeviceEventsDropped,
        "stillgate_device_events_dropped_total",
        "",
        Counter,
        &[Route],
        "Events of devices that their upstream has not taken in time, or that found no room.",
    ),
    of_process(
        Measure::DeviceDirectoryUp,
        "stillgate_device_directory_up",
        "",
        Gauge(Last),
        &[],
        "1 if the directory that nodes of devices share answered last time, else 0.",
    ),
    of_process(
        Measure::DeviceDirectoryCommands,
        "stillgate_device_directory_commands_total",
        "",
        Counter,
        &[],
        "Commands sent to the directory of devices.",
    ),
    of_process(
        Measure::DeviceDirectoryPending,
        "stillgate_device_directory_pending",
        "",
        Gauge(Last),
        &[],
        "Devices that have come or gone and that the directory has not heard of yet.",
    ),
    of_process(
        Measure::DeviceNodes,
        "stillgate_device_nodes",
        "",
        Gauge(Last),
        &[],
        "Nodes of devices in the directory that are alive, this one included.",
    ),
    of_process(
        Measure::DevicePeersConnected,
        "stillgate_device_peers_connected",
        "",
        Gauge(Last),
        &[],
        "Nodes of devices that this one has an open connection to.",
    ),
    of_process(
        Measure::DevicePeersRefused,
        "stillgate_device_peers_refused_total",
        "",
        Counter,
        &[],
        "Connections to `gateway.devices.peer.address` that were closed before they proved to be a node's.",
    ),
];

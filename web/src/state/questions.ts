/** What the page asks in intervals, each question once however many parts of the page want its answer. */
import type { DeploymentRow } from '../../../spec/deployment-row.ts';
import type { DeviceRow, KeyRow, MeshTable } from '../api/rows.ts';
import { Poll, request, requestText } from './poll.ts';

/** Sessions tell the gateway of their load several times a second; people see no more than this. */
export const live_ms = 2000;
/** Jobs come and go in minutes, and the gateway reads them from a shared filesystem. */
const jobs_ms = 5000;
const keys_ms = 10_000;

export const meshTable = new Poll(() => request<MeshTable>('mesh/table'), live_ms);
export const metricsText = new Poll(() => requestText('metrics'), live_ms);
export const jobs = new Poll(() => request<{ deployments: DeploymentRow[] }>('hpcserve/v1/jobs'), jobs_ms);
export const devices = new Poll(() => request<{ devices: DeviceRow[] }>('hpcserve/v1/devices'), jobs_ms);
export const keyList = new Poll(() => request<{ keys: KeyRow[] }>('hpcserve/v1/keys'), keys_ms);

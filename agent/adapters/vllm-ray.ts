/**
 * vLLM on several nodes where its version has no `--nnodes` (up to 0.11): by Ray, which is started on every node for
 * this replica alone (https://docs.vllm.ai/en/v0.11.0/serving/parallelism_scaling.html).
 *
 *     first node    program ── ray start --head
 *                      └─ once all nodes are there, it becomes `vllm serve`
 *     the others    program, which becomes `ray start --address` once the first one listens
 *
 * Ray 2.52 and later ask whoever connects for the key of the replica; earlier ones ask nobody.
 */
import type { EngineRankPlace } from './adapter.ts';

/** ROLE ADDRESS PORT OWN_ADDRESS NODES COMMAND…: options of Ray stand here, for those of vLLM are checked. */
const program = `
import os, socket, subprocess, sys, time

# Ray does not start where it finds ROCm's own variable, and asks for HIP's.
if os.environ.get("ROCR_VISIBLE_DEVICES"):
    os.environ["HIP_VISIBLE_DEVICES"] = os.environ["ROCR_VISIBLE_DEVICES"]
os.environ.pop("ROCR_VISIBLE_DEVICES", None)
role, address, port, own, nodes = sys.argv[1:6]
common = ["--block", "--disable-usage-stats", "--node-ip-address=" + own]
leader = "[%s]:%s" % (address, port) if ":" in address else "%s:%s" % (address, port)

def listens():
    try:
        socket.create_connection((address, int(port)), 5).close()
        return True
    except OSError:
        return False

if role == "join":
    while not listens():
        time.sleep(0.5)
    os.execvp("ray", ["ray", "start", "--address=" + leader, *common])

head = subprocess.Popen(["ray", "start", "--head", "--port=" + port, "--include-dashboard=false", *common])
while not listens():
    if head.poll() is not None:
        sys.exit("Ray ended with code %s before it listened" % head.returncode)
    time.sleep(0.5)
import ray
ray.init(address=leader, logging_level="ERROR", log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < int(nodes):
    time.sleep(0.5)
ray.shutdown()
os.environ["RAY_ADDRESS"] = leader
os.execvp(sys.argv[6], sys.argv[6:])
`.trim();

/** What goes before the command of vLLM on the first node, and is all that runs on the others. */
export function rayArgv({ rank, nodes, own_address, leader }: EngineRankPlace): string[] {
  const role = rank === 0 ? 'head' : 'join';
  return ['python3', '-c', program, role, leader.address, String(leader.port), own_address, String(nodes)];
}

/** @param key of the replica: 64 hex digits */
export function rayEnvironment(key: string): Record<string, string> {
  return { RAY_AUTH_MODE: 'token', RAY_AUTH_TOKEN: key };
}

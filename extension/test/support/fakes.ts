import type { ICluster, IEnded, IState, Message } from '../../src/contract';
import { ClustersModel } from '../../src/model/clusters';
import type { ISocket, ISocketEvents } from '../../src/model/reconnectingSocket';

/** Return a cluster that is ready. */
export function cluster(name: string, facts: Partial<ICluster> = {}): ICluster {
  return {
    id: `id of ${name}`,
    name,
    state: 'ready',
    message: '',
    up: 4,
    ranks: 4,
    threads: 1,
    scheduler: 'local',
    host: 'here',
    nodes: 1,
    jobs: [],
    created: 100,
    ends: null,
    reason: null,
    expected: null,
    idle_timeout: 600,
    busy: null,
    error: null,
    ...facts
  };
}

/** Return what is told of a cluster that has failed. */
export function gone(name: string, facts: Partial<IEnded> = {}): IEnded {
  return {
    id: `id of ${name}`,
    name,
    state: 'failed',
    reason: 'its head is gone',
    when: 1001,
    created: 100,
    ranks: 4,
    logs: '/logs',
    ...facts
  };
}

/** Return how things stand with these clusters. */
export function state(...clusters: ICluster[]): IState {
  return { version: '1', clusters, broken: [], starts: [], ended: [], time: 0 };
}

/** The server's end of a websocket. */
export class FakeSocket implements ISocket {
  constructor(private readonly events: ISocketEvents) {}

  readonly received: unknown[] = [];
  isClosed = false;

  open(): void {
    this.events.opened();
  }

  receive(message: Message): void {
    this.events.received(JSON.stringify(message));
  }

  drop(): void {
    this.events.closed();
  }

  send(text: string): void {
    this.received.push(JSON.parse(text));
  }

  close(): void {
    this.isClosed = true;
  }
}

/** A server: what it answers can be set, and the sockets that were opened are kept. */
export class FakeServer {
  readonly sockets: FakeSocket[] = [];
  asked = 0;
  answer: () => Promise<IState> = () => Promise.reject(new Error('the network is down'));

  readonly clusters = (): Promise<IState> => {
    this.asked += 1;
    return this.answer();
  };

  readonly connect = (events: ISocketEvents): ISocket => {
    const socket = new FakeSocket(events);
    this.sockets.push(socket);
    return socket;
  };

  /** The last socket. */
  get socket(): FakeSocket {
    const last = this.sockets.at(-1);
    if (!last) {
      throw new Error('no socket has been opened');
    }
    return last;
  }
}

/** Return a model that has been told of these clusters, and its server. */
export function live(...clusters: ICluster[]): { server: FakeServer; model: ClustersModel } {
  const server = new FakeServer();
  const model = new ClustersModel(server, () => 1);
  model.start();
  server.socket.open();
  server.socket.receive({ type: 'state', ...state(...clusters) });
  return { server, model };
}

/** Return the names of the clusters of a model, in its order. */
export const names = (model: ClustersModel): string[] =>
  model.clusters.map(cluster => cluster.name);

/** Wait until what was answered has been heard. */
export async function settled(): Promise<void> {
  await new Promise(resolve => setImmediate(resolve));
}

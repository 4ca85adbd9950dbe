import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type {
  ICheck,
  ICluster,
  IFormDescription,
  IKernel,
  ILogFile,
  ILogPart,
  IStart,
  IState,
  Options
} from './contract';
import type { ISocket, ISocketEvents } from './model/reconnectingSocket';

const ROOT = 'workbench';

/** The logs of a cluster. */
export interface ILogSource {
  files: () => Promise<ILogFile[]>;
  /** A part of at most 256 KiB, as it can be shown; `from` below zero: so many bytes before the end. */
  part: (file: string, from: number) => Promise<ILogPart>;
  /** Where the browser finds all of a file, as it is. */
  downloadUrl: (file: string) => string;
}

/** What names one cluster: a later cluster can have the name of an earlier one. */
type ClusterKey = Pick<ICluster, 'name' | 'id'>;

/** Requests to the server extension, with Jupyter's login and its XSRF token. */
export class Api {
  constructor(readonly settings: ServerConnection.ISettings = ServerConnection.makeSettings()) {}

  /** All clusters of this user. */
  clusters(): Promise<IState> {
    return this.request<IState>('GET', ['clusters']);
  }

  /** Request a cluster; the server starts it. */
  start(options: Options): Promise<IStart> {
    return this.request<IStart>('POST', ['clusters'], options);
  }

  /** Remove a start from the list, or cancel one that is under way. */
  async dismiss(start: string): Promise<void> {
    await this.request('DELETE', ['starts', start]);
  }

  /** Scale a cluster to this number of ranks. */
  async scale({ name, id }: ClusterKey, ranks: number): Promise<void> {
    await this.request('POST', ['clusters', name, 'scale'], { ranks }, { id });
  }

  /** Restart the MPI world of a cluster. */
  async restart({ name, id }: ClusterKey): Promise<void> {
    await this.request('POST', ['clusters', name, 'restart'], {}, { id });
  }

  /** Stop a cluster. */
  async stop({ name, id }: ClusterKey): Promise<void> {
    await this.request('DELETE', ['clusters', name], undefined, { id });
  }

  /** Remove the error of the last change of a cluster. */
  async dismissError({ name, id }: ClusterKey): Promise<void> {
    await this.request('DELETE', ['clusters', name, 'error'], undefined, { id });
  }

  /**
   * Send a request to the server.
   *
   * @param path - Parts of the path below `workbench/api/`.
   * @param query - The query of the address.
   * @param signal - Aborts the request.
   * @throws {@link ApiError} if the server responds with an error, or not at all.
   */
  async request<T>(
    method: string,
    path: string[],
    body?: object,
    query: Record<string, string> = {},
    signal?: AbortSignal
  ): Promise<T> {
    const url = this.url('api', path) + URLExt.objectToQueryString(query);
    const init = { method, signal, ...(body && { body: JSON.stringify(body) }) };
    let response: Response;
    try {
      response = await ServerConnection.makeRequest(url, init, this.settings);
    } catch (error) {
      throw new ApiError(0, error instanceof Error ? error.message : String(error));
    }
    const text = await response.text();
    if (!response.ok) {
      throw errorOf(response, text);
    }
    return parseAnswer(response, text) as T;
  }

  /** Return the description of the form for a new cluster. */
  form(): Promise<IFormDescription> {
    return this.request<IFormDescription>('GET', ['form']);
  }

  /** Return the kernels that run Python. */
  async kernels(): Promise<IKernel[]> {
    return (await this.request<{ kernels: IKernel[] }>('GET', ['kernels'])).kernels;
  }

  /** Return what a start with these options would do. */
  check(options: Options, signal?: AbortSignal): Promise<ICheck> {
    return this.request<ICheck>('POST', ['check'], options, {}, signal);
  }

  /**
   * Return the source of the logs of a cluster.
   *
   * @param id - The identity of the cluster, where another one may have the name; empty: the one that has the name, or
   *   had it last.
   */
  logs(cluster: string, id = ''): ILogSource {
    const path = ['clusters', cluster, 'logs'];
    const query: Record<string, string> = id === '' ? {} : { id };
    return {
      files: async () =>
        (await this.request<{ files: ILogFile[] }>('GET', path, undefined, query)).files,
      part: (file, from) =>
        this.request<ILogPart>('GET', [...path, file], undefined, { from: String(from), ...query }),
      downloadUrl: file => this.downloadUrl([...path, file, 'download'], query)
    };
  }

  /** Return the address of the dashboard of a cluster, with a slash at its end. */
  dashboardUrl(cluster: ICluster['name']): string {
    return this.url('dashboard', [cluster]) + '/';
  }

  // The address of what the browser requests by itself; parameters as of `request`.
  private downloadUrl(path: string[], query: Record<string, string>): string {
    return this.url('api', path) + URLExt.objectToQueryString({ ...query, ...this.login });
  }

  /** Open the websocket that reports changes. */
  connect(events: ISocketEvents): ISocket {
    const { WebSocket, wsUrl } = this.settings;
    const query = URLExt.objectToQueryString(this.login);
    const socket = new WebSocket(URLExt.join(wsUrl, ROOT, 'api', 'events') + query);
    socket.onopen = () => {
      events.opened();
    };
    socket.onmessage = message => {
      events.received(String(message.data));
    };
    socket.onclose = () => {
      events.closed();
    };
    return socket;
  }

  // What an address has where the browser sends no header of ours, and no cookie of this server.
  private get login(): Record<string, string> {
    const { token, appendToken } = this.settings;
    return appendToken && token ? { token } : {};
  }

  private url(kind: string, path: string[]): string {
    return URLExt.join(this.settings.baseUrl, ROOT, kind, ...path.map(encodeURIComponent));
  }
}

function parseAnswer(response: Response, text: string): unknown {
  try {
    return text === '' ? null : JSON.parse(text);
  } catch {
    throw new ApiError(
      response.status,
      'The server has sent a page in place of data: you may have to log in again. Reload the page.'
    );
  }
}

function errorOf(response: Response, text: string): ApiError {
  const status = `${response.status} ${response.statusText}`.trim();
  try {
    const { message, log } = JSON.parse(text) as { message?: string; log?: string | null };
    return new ApiError(response.status, message ?? status, log ?? null);
  } catch {
    return new ApiError(response.status, status);
  }
}

/** An error response of the server. */
export class ApiError extends Error {
  /**
   * @param status - The HTTP status; 0: there was no response.
   * @param message - The reason.
   * @param log - The last lines of a log with details.
   */
  constructor(
    readonly status: number,
    message: string,
    readonly log: string | null = null
  ) {
    super(message);
    this.name = 'ApiError';
  }

  /** Whether the server has no extension of the workbench. */
  get isMissing(): boolean {
    return this.status === 404;
  }
}

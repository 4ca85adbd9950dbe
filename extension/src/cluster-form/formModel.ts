import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

import { type Api, ApiError } from '../api';
import type { ICheck, ICluster, IFormDescription, IKernel, Options } from '../contract';
import type { IClusterLookup } from '../model/clusters';
import { DebouncedRequest } from './debouncedRequest';
import { initialValues, KERNEL, startOptions, type Values } from './values';

/** Milliseconds after the last key before what is filled in is checked. */
export const CHECK_DELAY = 400;

/** What went wrong with a request, or with a start. */
export interface IFailure {
  message: string;
  log: string;
}

/** The requests of a form. */
export type IFormSource = Pick<Api, 'form' | 'kernels' | 'check' | 'start' | 'dismiss'>;

/** What is filled in for a start, what the server says of it, and the start. Knows nothing of pages. */
export class FormModel implements IDisposable {
  constructor(
    private readonly source: IFormSource,
    private readonly clusters: IClusterLookup,
    delay = CHECK_DELAY
  ) {
    this.checks = new DebouncedRequest<Options, ICheck>({
      send: (options, signal) => source.check(options, signal),
      onReply: check => {
        this._checkFailure = null;
        this.setCheck(check);
      },
      onError: error => {
        this._checkFailure = toFailure(error);
        this.setCheck({ errors: {}, script: null });
      },
      delay
    });
  }

  /** Emitted when anything is new. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** What there is to fill in; null: the server has not told yet. */
  get form(): IFormDescription | null {
    return this._form;
  }

  /** The kernels that run Python; null: the server has not told yet. */
  get kernels(): readonly IKernel[] | null {
    return this._kernels;
  }

  get values(): Values {
    return this._values;
  }

  /** What is wrong with what was checked last, by the names of fields; nameless: of no field. */
  get errors(): Readonly<Record<string, string>> {
    return this.lastCheck.errors;
  }

  /** The script of the job of what was checked last. */
  get script(): string | null {
    return this.lastCheck.script;
  }

  /** The last script that there was: of use until there is another one. Empty: there was none. */
  get lastScript(): string {
    return this._lastScript;
  }

  /** Whether what is filled in has not been checked yet. */
  get isChecking(): boolean {
    return this.checks.isPending;
  }

  /** The kernel that is chosen, if it cannot be started with. */
  get unusableKernel(): IKernel | undefined {
    const name = this._values[KERNEL];
    return this._kernels?.find(kernel => kernel.name === name && kernel.version === null);
  }

  /** The kernel that is chosen, if it is not among those that the server has told; empty: it is. */
  get unlistedKernel(): string {
    const name = String(this._values[KERNEL] ?? '');
    return this._kernels?.every(kernel => kernel.name !== name) ? name : '';
  }

  /** Whether there is to be a start: nothing can be filled in meanwhile. */
  get isStarting(): boolean {
    return this._isStarting;
  }

  /** The start that the server has accepted, by its id: it goes on without this form. Empty: there is none. */
  get startId(): string {
    return this._startId;
  }

  /** The cluster of that start, once it has a record; an older one of the same name is another. */
  get cluster(): ICluster | undefined {
    const start = this.clusters.findStart(this._startId);
    const cluster = this.clusters.cluster(start?.name ?? '');
    return start && cluster && cluster.created >= start.since ? cluster : undefined;
  }

  /** Whether the cluster is ready, and the form of no more use. */
  get isComplete(): boolean {
    return this._isComplete;
  }

  /** Whether nothing is known that stands against a start. */
  get canStart(): boolean {
    const isFree = this._form !== null && !this._isStarting && !this.unusableKernel;
    return isFree && Object.keys(this.errors).length === 0;
  }

  /** Why the last start, or the last request, has failed. */
  get failure(): IFailure | null {
    return this._failure ?? this._checkFailure;
  }

  /** Ask what there is to fill in, and fill in what was remembered. */
  async load(remembered: unknown): Promise<void> {
    const kernelsLoaded = this.loadKernels();
    try {
      this._form = await this.source.form();
    } catch (error) {
      this._failure = toFailure(error);
      this.emit();
      return;
    }
    this._values = initialValues(this._form, remembered);
    this.checks.invoke(startOptions(this._form, this._values));
    this.emit();
    if ((await kernelsLoaded) && this.unlistedKernel !== '') {
      // it was removed since it was remembered
      this.set(KERNEL, '');
    }
  }

  /** Fill something in. */
  set(name: string, value: string | boolean): void {
    if (this._form && !this._isStarting) {
      this._values = { ...this._values, [name]: value };
      this.checks.invoke(startOptions(this._form, this._values));
      this.emit();
    }
  }

  /**
   * Start what is filled in.
   *
   * Resolves when the server has accepted the start, or the form tells why there is none.
   *
   * @throws {@link ApiError} if the server refuses a start whose form was closed meanwhile.
   */
  async start(): Promise<void> {
    const form = this._form;
    if (form === null || this._isStarting) {
      return;
    }
    this._isStarting = true;
    this._failure = null;
    this.emit();
    try {
      // somebody may press Enter, and close the form, sooner than it could be checked
      await this.checks.flush();
      if (Object.keys(this.errors).length === 0 && !this.unusableKernel) {
        await this.submit(startOptions(form, this._values));
        return;
      }
    } catch (error) {
      if (this._isDisposed) {
        throw error;
      }
      this._failure = toFailure(error);
    }
    this._isStarting = false;
    this.emit();
  }

  /**
   * Follow a start that the server has accepted.
   *
   * @param isRestored - Whether that was on an earlier visit: if the server does not know the start, it is over.
   */
  trackStart(id: string, isRestored = false): void {
    this._startId = id;
    this._isStarting = true;
    this.wasKnown = isRestored;
    this.isCancelled = false;
    this.clusters.changed.connect(this.updateStart);
    this.updateStart();
  }

  /** Cancel the start that the server has accepted. */
  async cancel(): Promise<void> {
    this._failure = null;
    try {
      await this.source.dismiss(this._startId);
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) {
        this._failure = toFailure(error);
        this.emit();
        return;
      } // it is over already
    }
    this.isCancelled = true;
    this.updateStart();
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    this.checks.dispose();
    this.clusters.changed.disconnect(this.updateStart);
    Signal.clearData(this);
  }

  private async submit(options: Options): Promise<void> {
    if (this.failedStart !== null) {
      // it is told of here, and somebody has done something about it
      this.source.dismiss(this.failedStart).catch(() => undefined);
      this.failedStart = null;
    }
    const { id } = await this.source.start(options);
    if (!this._isDisposed) {
      this.trackStart(id);
    }
  }

  private readonly updateStart = (): void => {
    const start = this.clusters.findStart(this._startId);
    // the answer to the request may come before the news of the start
    this.wasKnown ||= start !== undefined;
    const isLeft = this.isCancelled || (this.wasKnown && this.clusters.connectionState === 'live');
    const isGone = !start && isLeft;
    if (isGone || (start && start.state !== 'starting')) {
      this.clusters.changed.disconnect(this.updateStart);
      this._startId = '';
      this._isStarting = false;
      this._isComplete = start?.state === 'ready';
    }
    if (start?.state === 'failed') {
      this.failedStart = start.id;
      this._failure = { message: start.message, log: start.log };
    }
    this.emit();
  };

  private async loadKernels(): Promise<boolean> {
    let isLoaded = true;
    try {
      this._kernels = await this.source.kernels();
    } catch (error) {
      isLoaded = false;
      this._kernels = [];
      this._failure = toFailure(error);
    }
    this.emit();
    return isLoaded;
  }

  private setCheck(check: ICheck): void {
    this.lastCheck = check;
    this._lastScript = check.script ?? this._lastScript;
    this.emit();
  }

  private emit(): void {
    if (!this._isDisposed) {
      this._changed.emit();
    }
  }

  private readonly checks: DebouncedRequest<Options, ICheck>;
  private lastCheck: ICheck = { errors: {}, script: null };
  // whether the model knew the start
  private wasKnown = false;
  // whether the server has cancelled the start: whatever is heard of it later, the form waits for nothing
  private isCancelled = false;
  // the start that has failed in this form
  private failedStart: string | null = null;
  private _form: IFormDescription | null = null;
  private _kernels: readonly IKernel[] | null = null;
  private _values: Values = {};
  private _lastScript = '';
  private _isStarting = false;
  private _startId = '';
  private _isComplete = false;
  private _isDisposed = false;
  private _failure: IFailure | null = null;
  private _checkFailure: IFailure | null = null;
  private readonly _changed = new Signal<this, void>(this);
}

function toFailure(error: unknown): IFailure {
  return {
    message: error instanceof Error ? error.message : String(error),
    log: (error instanceof ApiError ? error.log : null) ?? ''
  };
}

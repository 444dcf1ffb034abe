"""Arguments for the public functions of CuPy, as text: data, and no array library.

``RECIPES``: qualified name -> arguments as one writes them in a call; ``|`` separates what is
tried in turn. Makers of arrays: ``f`` normal, ``u`` in (0, 1), ``p`` positive, ``i`` integers
(``high=``), ``b`` Boolean, ``c`` complex, ``s`` sorted, ``perm(n, k)`` different integers,
``spd(n)`` positive definite, ``low(n)`` triangular, ``u1`` bytes, ``csr(n)`` sparse,
``csr_spd(n)``, ``sos`` a filter in sections, ``knots`` and ``spline``. ``xp`` is the library, ``np`` NumPy (host arrays stay on the host).
``GENERIC``: what is tried for every other function. ``SUBJECTS``: what is no module's function.
``NOT_APPLICABLE``: what needs no graph, with the reason. Aliases are found by the walk.
"""

from __future__ import annotations

GENERIC = """
f(4, 5) | f(4, 5), f(4, 5) | f(6) | f(6), f(6) | i(6) | i(6), i(6) | f(4, 4) | f(3, 4), f(4, 3)
| f(4, 5), 1 | f(6), 2 | [f(3, 4), f(3, 4)] | u(6) | u(6), u(6) | p(6), p(6), u(6)
| f(6), f(6), f(6) | f(4, 4, 4) | i(6), p(6) | i(6), i(6), u(6) | p(6), p(6), p(6), p(6) | c(6)
| c(6), c(6) | b(6) | b(4, 5) | b(6), f(6) | 5 | (3, 4) | f(8, 8), f(3, 3) | spd(5) | spd(5), f(5)
| csr(5) | csr(5), f(5) | [csr(3), csr(3)] | i(4, 5) | f(6), 3, 1 | f(40), f(5) | f(3), f(3), f(40)
"""

SPECIAL = "u(6) | u(6), u(6) | u(6), u(6), u(6) | " + GENERIC


def _table(prefix: str, text: str) -> dict[str, str]:
    rows = (line.strip().partition(" ") for line in text.strip().splitlines())
    return {f"{prefix}.{name}": arguments.strip() for name, _, arguments in rows}


RECIPES: dict[str, str] = {
    **_table(
        "cupy",
        """
    append f(3), f(4)
    apply_along_axis lambda v: v * 2, 0, f(3, 4)
    apply_over_axes xp.sum, f(3, 4), [0]
    arange 5.0
    argpartition f(9), 3
    array f(3, 4)
    array_split f(7), 3
    asanyarray f(3, 4)
    asarray f(3, 4)
    asnumpy f(6)
    astype f(3, 4), 'f4'
    average f(4, 5)
    bartlett 8
    bincount i(20), minlength=9
    blackman 8
    broadcast_arrays f(3), f(2, 1)
    broadcast_to f(3), (2, 3)
    choose i(5, high=2), f(2, 5)
    clip f(6), -0.5, 0.5
    compress [True, False, True], f(3, 4), 0
    column_stack [f(3), f(3)]
    concat [f(3, 4), f(2, 4)]
    concatenate [f(3, 4), f(2, 4)]
    dot f(3, 4), f(4, 3)
    dstack [f(3), f(3)]
    hstack [f(3), f(3)]
    inner f(3, 4), f(5, 4)
    matmul f(3, 4), f(4, 3)
    matrix_transpose f(3, 4)
    row_stack [f(3), f(3)]
    stack [f(3), f(3)]
    vstack [f(3), f(3)]
    convolve f(8), f(3)
    copyto f(3, 4), f(3, 4)
    correlate f(8), f(3)
    cross f(4, 3), f(4, 3)
    delete f(6), [1, 2]
    diag_indices 4
    diag_indices_from f(4, 4)
    digitize f(9), s(5)
    dsplit f(2, 2, 4), 2
    einsum 'ij,jk->ik', f(3, 4), f(4, 5)
    expand_dims f(3), 0
    extract b(6), f(6)
    eye 4
    fill_diagonal f(4, 4), 2.0
    from_dlpack f(3, 4)
    fromfunction lambda a, b: a + b, (3, 4)
    full (3, 4), 2.5
    full_like f(3, 4), 2.0
    hamming 8
    hanning 8
    histogram f(50), bins=5, range=(-3, 3)
    histogram2d f(50), f(50), 4
    histogramdd f(50, 2), 4
    hsplit f(4, 4), 2
    identity 4
    indices (3, 4)
    interp f(8), s(5), f(5)
    intersect1d i(8), i(8)
    ix_ i(3), i(4)
    kaiser 8, 3.0
    ldexp f(6), i(6)
    lexsort f(3, 6)
    linspace 0.0, 1.0, 7
    logspace 0.0, 2.0, 7
    mask_indices 4, xp.triu
    meshgrid f(3), f(4)
    moveaxis f(2, 3, 4), 0, -1
    ones (3, 4)
    packbits u1(6)
    pad f(3, 4), 1
    partition f(9), 3
    percentile f(4, 9), 30, axis=1
    permute_dims f(3, 4), (1, 0)
    piecewise f(6), [b(6), b(6)], [1.0, 2.0]
    place f(6), b(6), f(3)
    poly f(3)
    polyadd f(3), f(4)
    polymul f(3), f(4)
    polysub f(3), f(4)
    polyfit s(8), f(8), 2
    polyval f(3), f(6)
    put f(6), perm(6, 3), f(3)
    put_along_axis f(3, 4), i(3, 1, high=4), 1.0, 1
    putmask f(6), b(6), f(6)
    quantile f(4, 9), 0.3, axis=1
    ravel_multi_index (i(5, high=3), i(5, high=4)), (3, 4)
    real_if_close c(6)
    repeat f(3, 4), 2
    require f(3, 4), 'f8', ['C']
    reshape f(3, 4), (4, 3)
    resize f(3, 4), (2, 5)
    roll f(4, 5), 2
    rollaxis f(2, 3, 4), 2
    roots f(4) | p(2)
    searchsorted s(6), f(4)
    select [b(6), b(6)], [f(6), f(6)]
    split f(6), 3
    squeeze f(1, 3)
    swapaxes f(3, 4), 0, 1
    take f(6), i(3, high=6)
    take_along_axis f(3, 4), i(3, 4, high=4), 1
    tensordot f(3, 4), f(4, 5), 1
    tile f(3), 2
    trapezoid f(6)
    tri 4
    tril_indices 4
    tril_indices_from f(4, 4)
    trim_zeros f(6)
    triu_indices 4
    triu_indices_from f(4, 4)
    unpackbits u1(6)
    unravel_index i(5, high=12), (3, 4)
    vander f(4)
    vsplit f(4, 4), 2
    where b(6), f(6), f(6)
    zeros (3, 4)
    """,
    ),
    **_table(
        "cupy.linalg",
        """
    cholesky spd(5)
    cross f(4, 3), f(4, 3)
    eig spd(4)
    eigh spd(4)
    eigvals spd(4)
    eigvalsh spd(4)
    lstsq f(6, 3), f(6), rcond=None
    matrix_power f(4, 4), 3
    solve spd(5), f(5)
    tensorinv f(4, 6, 8, 3), ind=2
    tensorsolve f(2, 3, 6), f(2, 3)
    """,
    ),
    **_table(
        "cupy.fft",
        """
    fft f(4, 8)
    fft2 f(4, 8)
    fftfreq 8
    fftn f(4, 8)
    hfft c(6)
    ifft c(4, 8)
    ifft2 c(4, 8)
    ifftn c(4, 8)
    irfft c(4, 6)
    irfft2 c(4, 6)
    irfftn c(4, 6)
    rfftfreq 8
    """,
    ),
    **_table(
        "cupy.random",
        """
    beta 2.0, 3.0, 5
    binomial 10, 0.3, 5
    chisquare 3.0, 5
    choice 8, 4
    dirichlet p(3), 4 | p(3)
    exponential 2.0, 5
    f 3.0, 4.0, 5
    gamma 2.0, 1.0, 5
    geometric 0.4, 5
    gumbel 0.0, 1.0, 5
    hypergeometric 5, 6, 4, 5
    laplace 0.0, 1.0, 5
    logistic 0.0, 1.0, 5
    lognormal 0.0, 1.0, 5
    logseries 0.5, 5
    multinomial 5, [0.2, 0.3, 0.5], 4
    multivariate_normal f(3), spd(3), 4
    negative_binomial 5, 0.4, 5
    noncentral_chisquare 3.0, 1.0, 5
    noncentral_f 3.0, 4.0, 1.0, 5
    normal 0.0, 1.0, 5
    pareto 2.0, 5
    permutation f(6)
    poisson 3.0, 5
    power 2.0, 5
    rand 3, 4
    randint 0, 9, 5
    randn 3, 4
    random 5
    random_integers 0, 9, 5
    random_sample 5
    ranf 5
    rayleigh 1.0, 5
    sample 5
    shuffle f(6)
    standard_cauchy 5
    standard_exponential 5
    standard_gamma 2.0, 5
    standard_normal 5
    standard_t 3.0, 5
    triangular 0.0, 1.0, 2.0, 5
    uniform 0.0, 1.0, 5
    vonmises 0.0, 1.0, 5
    wald 1.0, 2.0, 5
    weibull 2.0, 5
    zipf 3.0, 5
    """,
    ),
    **_table(
        "cupyx",
        """
    scatter_add f(6), perm(6, 3), f(3)
    scatter_max f(6), perm(6, 3), f(3)
    scatter_min f(6), perm(6, 3), f(3)
    rsqrt p(6)
    """,
    ),
    **_table(
        "cupyx.scipy.ndimage",
        """
    affine_transform f(6, 6), u(2, 2) | f(6, 6), u(2)
    binary_fill_holes b(6, 6)
    binary_hit_or_miss b(6, 6)
    binary_propagation b(6, 6)
    black_tophat f(8, 8), size=3
    convolve f(8, 8), f(3, 3)
    convolve1d f(8, 8), f(3)
    correlate f(8, 8), f(3, 3)
    correlate1d f(8, 8), f(3)
    distance_transform_edt b(6, 6)
    find_objects i(6, 6)
    fourier_ellipsoid c(8, 8), 2.0
    fourier_gaussian c(8, 8), 2.0
    fourier_shift c(8, 8), 1.5
    fourier_uniform c(8, 8), 2.0
    gaussian_filter f(8, 8), 1.5
    gaussian_filter1d f(8, 8), 1.5
    gaussian_gradient_magnitude f(8, 8), 1.5
    gaussian_laplace f(8, 8), 1.5
    generate_binary_structure 2, 1
    generic_filter f(8, 8), mean3, 3
    generic_filter1d f(8, 8), raw_filter1d, 3
    generic_gradient_magnitude f(8, 8), ndimage.sobel
    generic_laplace f(8, 8), second_derivative
    grey_closing f(8, 8), 3
    grey_dilation f(8, 8), 3
    grey_erosion f(8, 8), 3
    grey_opening f(8, 8), 3
    histogram f(20), -3, 3, 5
    iterate_structure np.ones((3, 3), bool), 2 | xp.ones((3, 3), bool), 2
    label b(6, 6)
    labeled_comprehension f(12), i(12, high=3), [1, 2], xp.sum, float, 0.0
    map_coordinates f(6, 6), p(2, 5)
    maximum_filter f(8, 8), 3
    maximum_filter1d f(8, 8), 3
    median_filter f(8, 8), 3
    minimum_filter f(8, 8), 3
    minimum_filter1d f(8, 8), 3
    morphological_gradient f(8, 8), 3
    morphological_laplace f(8, 8), 3
    percentile_filter f(8, 8), 30, 3
    rank_filter f(8, 8), 2, 3
    rotate f(6, 6), 30.0
    shift f(6, 6), 1.5
    sum_labels f(12), i(12, high=3), xp.arange(1, 3)
    uniform_filter f(8, 8), 3
    uniform_filter1d f(8, 8), 3
    value_indices i(6, 6)
    white_tophat f(8, 8), 3
    zoom f(6, 6), 1.5
    """,
    ),
    **_table(
        "cupyx.scipy.signal",
        """
    abcd_normalize f(2, 2), f(2, 1), f(1, 2), f(1, 1)
    argrelextrema f(20), xp.greater
    argrelmax f(20)
    argrelmin f(20)
    band_stop_obj 0.2, 0, xp.asarray([0.1, 0.6]), xp.asarray([0.2, 0.5]), 1.0, 40.0, 'butter'
    bilinear [1.0], [1.0, 2.0], 2.0 | p(2), p(3), 2.0
    bilinear_zpk c(2), c(3), 1.0, 2.0
    bode ([1.0], [1.0, 2.0, 1.0])
    buttap 3
    butter 3, 0.3
    buttord 0.2, 0.3, 3, 40
    cheb1ap 3, 1.0
    cheb1ord 0.2, 0.3, 3, 40
    cheb2ap 3, 20.0
    cheb2ord 0.2, 0.3, 3, 40
    cheby1 3, 1.0, 0.3
    cheby2 3, 20.0, 0.3
    check_COLA 'hann', 16, 8
    check_NOLA 'hann', 16, 8
    chirp s(20), 1.0, 2.0, 5.0
    coherence f(128), f(128), nperseg=32
    cont2discrete (f(2, 2), f(2, 1), f(1, 2), f(1, 1)), 0.1
    convolve f(20), f(5)
    convolve2d f(8, 8), f(3, 3)
    choose_conv_method f(20), f(5)
    correlate f(20), f(5)
    correlate2d f(8, 8), f(3, 3)
    correlation_lags 8, 4
    csd f(128), f(128), nperseg=32
    cspline1d f(20)
    cspline1d_eval f(20), p(5)
    cspline2d f(64, 64)
    cwt f(20), lambda n, a: xp.ones(n), [1, 2]
    dbode ([1.0], [1.0, 0.5], 0.1), n=5
    decimate f(40), 2
    deconvolve f(9), p(3)
    detrend f(20)
    dfreqresp ([1.0], [1.0, 0.5], 0.1), n=5
    dimpulse ([1.0], [1.0, 0.5], 0.1), n=5
    dlsim ([1.0], [1.0, 0.5], 0.1), f(6)
    dstep ([1.0], [1.0, 0.5], 0.1), n=5
    ellip 3, 1.0, 20.0, 0.3
    ellipap 3, 1.0, 20.0
    ellipord 0.2, 0.3, 3, 40
    fftconvolve f(20), f(5)
    filtfilt np.array([0.2, 0.2]), np.array([1.0, -0.5]), f(40) | p(2), xp.asarray([1.0, -0.5]), f(40)
    find_peaks f(30)
    findfreqs p(2), p(3), 5
    firls 5, [0, 0.3, 0.4, 1], [1, 1, 0, 0]
    firwin 5, 0.3
    firwin2 9, xp.asarray([0.0, 0.5, 1.0]), xp.asarray([1.0, 1.0, 0.0])
    freqresp ([1.0], [1.0, 2.0, 1.0]), n=5
    freqs p(2), p(3), p(5)
    freqs_zpk c(2), c(3), 1.0, p(5)
    freqz p(3), p(3), 8
    freqz_sos sos, 8
    freqz_zpk c(2), c(3), 1.0, 8
    gammatone 440.0, 'iir', fs=16000
    gauss_spline f(8), 3
    gausspulse f(8), 5
    get_window 'hann', 8
    group_delay (p(3), p(2)), 8
    hilbert f(20)
    hilbert2 f(8, 8)
    iircomb 50, 30, fs=200
    iirdesign 0.2, 0.3, 1, 40
    iirfilter 3, 0.3, btype='low'
    iirnotch 0.3, 30
    iirpeak 0.3, 30
    impulse ([1.0], [1.0, 2.0, 1.0]), N=5
    invres c(2), c(2), [0.0] | c(2), c(2), c(1)
    invresz c(2), c(2), [0.0] | c(2), c(2), c(1)
    istft c(17, 9), nperseg=32
    kaiser_atten 7, 0.1
    kaiser_beta 30.0
    kaiserord 40, 0.1
    lfilter np.array([0.5, 0.2]), np.array([1.0, -0.5]), f(20) | p(2), xp.asarray([1.0, -0.5]), f(20)
    lfilter_zi p(3), p(3)
    lfiltic p(3), p(3), f(2)
    lombscargle s(20), f(20), p(5)
    lp2bp p(2), p(3)
    lp2bp_zpk c(2), c(3), 1.0
    lp2bs p(2), p(3)
    lp2bs_zpk c(2), c(3), 1.0
    lp2hp p(2), p(3)
    lp2hp_zpk c(2), c(3), 1.0
    lp2lp p(2), p(3)
    lp2lp_zpk c(2), c(3), 1.0
    lsim ([1.0], [1.0, 2.0, 1.0]), f(6), np.arange(6.0) | ([1.0], [1.0, 2.0, 1.0]), f(6), xp.arange(6.0)
    max_len_seq 4
    medfilt f(21), 3
    medfilt2d f(9, 9), 3
    minimum_phase p(9)
    morlet 16
    morlet2 16, 3.0
    normalize p(2), p(3)
    oaconvolve f(40), f(5)
    order_filter f(8, 8), np.ones((3, 3)), 2 | f(8, 8), xp.ones((3, 3)), 2
    peak_prominences f(30), np.array([3, 9]) | f(30), xp.asarray([3, 9])
    peak_widths f(30), np.array([3, 9]) | f(30), xp.asarray([3, 9])
    periodogram f(64)
    place_poles spd(2), f(2, 1), [-1.0, -2.0] | spd(2), f(2, 1), xp.asarray([-1.0, -2.0])
    qmf f(6)
    qspline1d f(20)
    qspline1d_eval f(20), p(5)
    qspline2d f(64, 64)
    resample f(20), 10
    resample_poly f(20), 2, 3
    residue p(2), p(3)
    residuez p(2), p(3)
    ricker 16, 3.0
    savgol_coeffs 5, 2
    savgol_filter f(20), 5, 2
    sawtooth f(8)
    sepfir2d f(8, 8), f(3), f(3)
    sos2tf sos
    sos2zpk sos
    sosfilt sos, f(40)
    sosfilt_zi sos
    sosfiltfilt sos, f(60)
    sosfreqz sos, 8
    spectrogram f(128), nperseg=32
    spline_filter f(64, 64)
    ss2tf f(2, 2), f(2, 1), f(1, 2), f(1, 1)
    ss2zpk f(2, 2), f(2, 1), f(1, 2), f(1, 1)
    step ([1.0], [1.0, 2.0, 1.0]), N=5
    stft f(128), nperseg=32
    sweep_poly s(9), p(3)
    symiirorder1 f(200), 0.5, 0.3
    symiirorder2 f(200), 0.5, 0.3
    tf2sos p(3), p(3)
    tf2ss p(2), p(3)
    tf2zpk p(2), p(3)
    unique_roots p(4)
    unit_impulse 8
    upfirdn f(5), f(20), 2, 3
    vectorstrength p(9), 2.0
    welch f(128), nperseg=32
    wiener f(8, 8)
    zpk2sos c2(2), c2(2), 1.0
    zpk2ss c2(2), c2(2), 1.0
    zpk2tf c(2), c(2), 1.0
    """,
    ),
    **_table(
        "cupyx.scipy.signal.windows",
        """
    chebwin 9, 60.0
    exponential 9
    gaussian 9, 2.0
    general_cosine 9, [0.5, 0.3, 0.2]
    general_gaussian 9, 1.5, 2.0
    general_hamming 9, 0.6
    get_window 'hann', 8
    kaiser 9, 3.0
    kaiser_bessel_derived 8, 3.0
    barthann 9
    bartlett 9
    blackman 9
    blackmanharris 9
    bohman 9
    boxcar 9
    cosine 9
    flattop 9
    hamming 9
    hann 9
    lanczos 9
    nuttall 9
    parzen 9
    taylor 9
    triang 9
    tukey 9
    """,
    ),
    **_table(
        "cupyx.scipy.sparse",
        """
    block_array [[csr(3), csr(3)]]
    bmat [[csr(3), csr(3)]]
    diags [f(4), f(3)], [0, 1]
    diags_array [f(4), f(3)], offsets=[0, 1]
    eye 4
    eye_array 4
    find csr(5)
    identity 4
    kron csr(3), csr(3)
    kronsum csr(3), csr(3)
    matrix_transpose csr(4)
    permute_dims csr(4)
    rand 5, 5, 0.3
    random 5, 5, 0.3
    random_array (5, 5)
    spdiags f(2, 4), [0, 1], 4, 4
    swapaxes csr(4), 0, 1
    """,
    ),
    **_table(
        "cupyx.scipy.sparse.linalg",
        """
    aslinearoperator csr(5)
    bicgstab csr_spd(5), f(5)
    cg csr_spd(5), f(5)
    cgs csr_spd(5), f(5)
    eigsh csr_spd(8), k=2
    factorized csr_spd(5)
    gmres csr_spd(5), f(5)
    lobpcg csr_spd(8), f(8, 2)
    lsmr csr_spd(5), f(5)
    lsqr csr_spd(5), f(5)
    matrix_power csr(5), 2
    minres csr_spd(5), f(5)
    norm csr(5)
    spilu csr_spd(5)
    splu csr_spd(5)
    spsolve csr_spd(5), f(5)
    spsolve_triangular csr_low(5), f(5)
    svds csr_spd(8), k=2
    """,
    ),
    **_table(
        "cupyx.scipy.special",
        """
    bdtr f(6), i(6), u(6)
    ellipj f(6), u(6)
    lpmv 1, i(6), u(6)
    multigammaln p(6), 1
    polygamma i(6, high=3), p(6)
    sph_harm i(6, high=2), i(6), f(6), f(6)
    sph_harm_y i(6), i(6, high=2), f(6), f(6)
    spherical_yn i(6), p(6)
    wright_bessel p(6), p(6), p(6)
    yn i(6), p(6)
    """,
    ),
    **_table(
        "cupyx.scipy.linalg",
        """
    bandwidth f(4, 4)
    block_diag f(2, 2), f(3, 3)
    circulant f(4)
    companion p(4)
    convolution_matrix f(4), 3
    dft 4
    expm f(4, 4)
    fiedler f(4)
    fiedler_companion p(4)
    hadamard 4
    hankel f(4)
    helmert 4
    hilbert 4
    khatri_rao f(3, 4), f(2, 4)
    leslie f(4), f(3)
    lu f(4, 4)
    lu_factor spd(4)
    lu_solve lu(4), f(4)
    solve_triangular low(4), f(4), lower=True
    toeplitz f(4)
    """,
    ),
    **_table("cupyx.linalg", "cho_solve (low(4), True), f(4)\ninvh spd(4)"),
    **_table(
        "cupyx.scipy.fft",
        """
    fftfreq 8
    fht p(16), 0.1, 0.5
    ifht p(16), 0.1, 0.5
    get_fft_plan c(8)
    next_fast_len 13
    rfftfreq 8
    """,
    ),
    **_table("cupyx.scipy.fftpack", "get_fft_plan c(8)"),
    **_table(
        "cupyx.scipy.stats",
        """
    boxcox_llf 0.5, p(9)
    entropy p(9)
    trim_mean f(20), 0.1
    zmap f(9), f(9)
    """,
    ),
    **_table(
        "cupyx.scipy.interpolate",
        """
    barycentric_interpolate s(5), f(5), u(6)
    interpn (np.arange(4.0), np.arange(5.0)), f(4, 5), p(6, 2) * 0.5 | (s(4), s(5)), f(4, 5), u(6, 2)
    krogh_interpolate s(5), f(5), u(6)
    make_interp_spline s(8), f(8)
    make_lsq_spline np.arange(9.0), f(9), np.array([0.0] * 4 + [4.0] + [8.0] * 4) | s(9), f(9), knots
    pchip_interpolate s(8), f(8), u(6)
    splantider (knots, f(9), 3)
    splder (knots, f(9), 3)
    """,
    ),
}

# Name -> function and arguments: methods, operators, and what classes do when they are called.
SUBJECTS: dict[str, tuple[str, str]] = {}
_METHODS = """
    all f(4, 5)
    any f(4, 5)
    argmax f(4, 5)
    argmin f(4, 5)
    argpartition f(9), 3
    argsort f(4, 5)
    astype f(4, 5), 'f4'
    choose i(5, high=2), f(2, 5)
    clip f(6), -0.5, 0.5
    compress f(3, 4), [True, False, True], 0
    conj c(6)
    copy f(4, 5)
    cumprod f(4, 5)
    cumsum f(4, 5)
    diagonal f(4, 5)
    dot f(3, 4), f(4, 5)
    fill f(3, 4), 2.5
    flatten f(3, 4)
    get f(6)
    item f(1)
    max f(4, 5)
    mean f(4, 5)
    min f(4, 5)
    nonzero f(6)
    partition f(9), 3
    prod f(4, 5)
    ptp f(4, 5)
    put f(6), perm(6, 3), f(3)
    ravel f(3, 4)
    repeat f(3, 4), 2
    reshape f(3, 4), (4, 3)
    round f(6), 1
    scatter_add f(6), perm(6, 3), f(3)
    searchsorted s(6), f(4)
    sort f(4, 5)
    squeeze f(1, 3)
    std f(4, 5)
    sum f(4, 5)
    swapaxes f(3, 4), 0, 1
    take f(6), i(3, high=6)
    tolist f(6)
    trace f(4, 4)
    transpose f(3, 4)
    var f(4, 5)
    view f(3, 4)
    __add__ f(4, 5), f(4, 5)
    __iadd__ f(4, 5), f(4, 5)
    __matmul__ f(3, 4), f(4, 5)
    __getitem__ f(6), i(3, high=6)
    __setitem__ f(6), perm(6, 3), f(3)
    __lt__ f(6), f(6)
    __divmod__ f(6), p(6)
    __pow__ p(6), f(6)
    __bool__ f(1)
    __float__ f()
"""
for _line in _METHODS.strip().splitlines():
    _name, _, _arguments = _line.strip().partition(" ")
    SUBJECTS[f"cupy.ndarray.{_name}"] = (f"xp.ndarray.{_name}", _arguments)

_GENERATOR = """
    beta 2.0, 3.0, 5
    binomial 10, 0.3, 5
    chisquare 3.0, 5
    dirichlet p(3), 4 | p(3)
    exponential 2.0, 5
    f 3.0, 4.0, 5
    gamma 2.0, 1.0, 5
    geometric 0.4, 5
    hypergeometric 5, 6, 4, 5
    integers 0, 9, 5
    logseries 0.5, 5
    poisson 3.0, 5
    power 2.0, 5
    random 5
    standard_exponential 5
    standard_gamma 2.0, 5
    standard_normal 5
    uniform 0.0, 1.0, 5
"""
for _line in _GENERATOR.strip().splitlines():
    _name, _, _arguments = _line.strip().partition(" ")
    SUBJECTS[f"cupy.random.Generator.{_name}"] = (
        f"(lambda g: lambda *a, **k: g.{_name}(*a, **k))(xp.random.default_rng(7))",
        _arguments,
    )

_SPARSE = """
    __matmul__ csr(5), f(5)
    __add__ csr(5), csr(5)
    multiply csr(5), 2.0
    dot csr(5), f(5, 3)
    sum csr(5)
    toarray csr(5)
    tocoo csr(5)
    tocsc csr(5)
    transpose csr(5)
    diagonal csr(5)
    max csr(5)
    sqrt csr(5)
"""
for _line in _SPARSE.strip().splitlines():
    _name, _, _arguments = _line.strip().partition(" ")
    SUBJECTS[f"cupyx.scipy.sparse.csr_matrix.{_name}"] = (f"sparse.csr_matrix.{_name}", _arguments)

_INTERPOLATE = {
    "BarycentricInterpolator": "lambda x, y, v: interpolate.BarycentricInterpolator(x, y)(v)",
    "KroghInterpolator": "lambda x, y, v: interpolate.KroghInterpolator(x, y)(v)",
    "interp1d": "lambda x, y, v: interpolate.interp1d(x, y, fill_value='extrapolate')(v)",
    "CubicSpline": "lambda x, y, v: interpolate.CubicSpline(x, y)(v)",
    "PchipInterpolator": "lambda x, y, v: interpolate.PchipInterpolator(x, y)(v)",
    "Akima1DInterpolator": "lambda x, y, v: interpolate.Akima1DInterpolator(x, y)(v)",
    "UnivariateSpline": "lambda x, y, v: interpolate.UnivariateSpline(x, y)(v)",
    "RBFInterpolator": "lambda x, y, v: interpolate.RBFInterpolator(x[:, None], y)(v[:, None])",
}
for _name, _text in _INTERPOLATE.items():
    SUBJECTS[f"cupyx.scipy.interpolate.{_name}.__call__"] = (_text, "s(8), f(8), u(6)")
SUBJECTS["cupyx.scipy.interpolate.BSpline.__call__"] = (
    "lambda c, v: interpolate.BSpline(knots, c, 3)(v)",
    "f(5), u(6)",
)
SUBJECTS["cupyx.scipy.interpolate.RegularGridInterpolator.__call__"] = (
    "lambda z, v: interpolate.RegularGridInterpolator((xp.arange(4.0), xp.arange(5.0)), z)(v)",
    "f(4, 5), u(6, 2)",
)
SUBJECTS["cupy.poly1d.__call__"] = ("lambda c, v: xp.poly1d(c)(v)", "f(4), f(6)")
SUBJECTS["cupy.vectorize.__call__"] = ("vectorized", "f(6), f(6)")
SUBJECTS["cupy.fuse.__call__"] = ("fused", "f(6), f(6)")
SUBJECTS["cupy.ElementwiseKernel.__call__"] = ("elementwise_kernel", "f(6), f(6)")
SUBJECTS["cupy.ReductionKernel.__call__"] = ("reduction_kernel", "f(4, 5)")

_REASONS = {
    "needs files, or another source of host data": """
        cupy.save cupy.savez cupy.savez_compressed cupy.savetxt cupy.load cupy.loadtxt
        cupy.genfromtxt cupy.fromfile cupy.fromstring cupy.frombuffer cupy.fromiter""",
    "makes text": """
        cupy.array2string cupy.array_repr cupy.array_str cupy.base_repr cupy.binary_repr
        cupy.format_float_positional cupy.format_float_scientific cupy.disp cupy.typename
        cupy.show_config cupy.who cupy.get_printoptions cupy.set_printoptions cupy.printoptions
        cupy.set_string_function cupy.safe_eval cupyx.get_runtime_info""",
    "is about dtypes, types or shapes only": """
        cupy.can_cast cupy.common_type cupy.find_common_type cupy.min_scalar_type
        cupy.mintypecode cupy.obj2sctype cupy.promote_types cupy.result_type cupy.sctype2char
        cupy.issctype cupy.issubclass_ cupy.issubdtype cupy.issubsctype cupy.isdtype
        cupy.iterable cupy.isscalar cupy.broadcast_shapes cupy.make_aligned_dtype
        cupy.get_array_wrap cupy.byte_bounds cupyx.scipy.sparse.get_index_dtype
        cupyx.scipy.sparse.issparse cupyx.scipy.sparse.isspmatrix
        cupyx.scipy.sparse.isspmatrix_csr cupyx.scipy.sparse.isspmatrix_csc
        cupyx.scipy.sparse.isspmatrix_coo cupyx.scipy.sparse.isspmatrix_dia
        cupyx.scipy.sparse.safely_cast_index_arrays
        cupyx.scipy.spatial.distance.check_soft_dependencies""",
    "needs cuVS or pylibcugraph": """
        cupyx.scipy.sparse.csgraph.connected_components cupyx.scipy.spatial.distance_matrix
        cupyx.scipy.spatial.distance.canberra cupyx.scipy.spatial.distance.cdist
        cupyx.scipy.spatial.distance.chebyshev cupyx.scipy.spatial.distance.cityblock
        cupyx.scipy.spatial.distance.correlation cupyx.scipy.spatial.distance.cosine
        cupyx.scipy.spatial.distance.distance_matrix cupyx.scipy.spatial.distance.euclidean
        cupyx.scipy.spatial.distance.hamming cupyx.scipy.spatial.distance.hellinger
        cupyx.scipy.spatial.distance.jensenshannon
        cupyx.scipy.spatial.distance.kl_divergence cupyx.scipy.spatial.distance.minkowski
        cupyx.scipy.spatial.distance.pdist cupyx.scipy.spatial.distance.russellrao
        cupyx.scipy.spatial.distance.sqeuclidean""",
    "is about the library itself": """
        cupy.clear_memo cupy.memoize cupy.fuse cupy.get_array_module
        cupy.get_default_memory_pool cupy.get_default_pinned_memory_pool cupy.is_available
        cupyx.allow_synchronize cupyx.errstate cupyx.geterr cupyx.seterr
        cupy.random.default_rng cupy.random.get_random_state cupy.random.set_random_state
        cupy.random.reset_states cupy.random.seed""",
    "returns host memory": """
        cupyx.empty_like_pinned cupyx.empty_pinned cupyx.zeros_like_pinned
        cupyx.zeros_pinned cupy.random.bytes""",
    "takes a capsule of DLPack": "cupy.fromDlpack",
    "returns memory whose contents are not defined": "cupy.empty cupy.empty_like",
}
NOT_APPLICABLE: dict[str, str] = {
    name: reason for reason, names in _REASONS.items() for name in names.split()
}
